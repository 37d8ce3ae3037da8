"""``python -m tests.faults.outputs.page`` writes docs/internals/outputs-under-faults.md."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tests.faults.outputs.cells import CHEAP, FAULTS, OUTPUTS

PAGE: Final = Path(__file__).parents[3] / "docs/internals/outputs-under-faults.md"
_HEAD: Final = """# Outputs under faults

Each kind of output runs under each fault, with real servers and file systems. A second output of
the same pipeline has no fault.

- During the fault `tidelog status` shows it, and the second output gets every change.
- Afterwards the copy is equal to the source: no change is lost or repeated, and no key went back in
  time.

`python -m tests.faults.outputs.page` makes this page from the suite, `tests/faults/outputs`.
`make test-all` runs the cells marked •, `make test-thorough` the others.
"""
_TITLES: Final = {
    "postgres": "PostgreSQL", "mysql": "MySQL", "mariadb": "MariaDB", "opensearch": "OpenSearch",
    "kafka": "Kafka, compacted", "kafka_transactions": "Kafka, by transactions", "http": "HTTP",
    "files": "Files", "files_s3": "Files on S3", "delta": "Delta", "iceberg": "Iceberg",
}  # fmt: skip


def page() -> str:
    """The whole of it."""
    reasons: list[str] = []

    def shown(output: str, fault: str) -> str:
        reason = FAULTS[fault].impossible.get(output)
        if reason is not None:
            if reason not in reasons:
                reasons.append(reason)
            return f"[{reasons.index(reason) + 1}]"
        cell = f"{output}-{fault}"
        return "holds •" if cell in CHEAP else "holds"

    table = [[_TITLES[output], *(shown(output, fault) for fault in FAULTS)] for output in OUTPUTS]
    parts = [
        _HEAD,
        _table(["", *(fault.title for fault in FAULTS.values())], table),
        "\n".join(f"- [{number}] {reason}." for number, reason in enumerate(reasons, 1)),
        "## Faults",
        "\n".join(f"- **{each.title}**: {each.what}" for each in FAULTS.values()),
    ]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
