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
- Afterwards the copy is the source: nothing is lost or repeated, and no key went back in time.

`python -m tests.faults.outputs.page` makes this page from the suite, `tests/faults/outputs`. All
pairs of an output and a fault hold, but those under *Exceptions*. `make test-thorough` runs all.
"""
_TITLES: Final = {
    "postgres": "PostgreSQL", "mysql": "MySQL", "mariadb": "MariaDB", "opensearch": "OpenSearch",
    "kafka": "compacted Kafka", "kafka_transactions": "Kafka by transactions", "http": "HTTP",
    "files": "Files", "files_s3": "Files on S3", "delta": "Delta",
    "delta_s3": "Delta on S3", "iceberg": "Iceberg",
    "iceberg_s3": "Iceberg on S3",
}  # fmt: skip


def page() -> str:
    """The whole of it."""
    exceptions: dict[str, list[str]] = {}
    for output in OUTPUTS:
        for fault in FAULTS.values():
            reason = fault.impossible.get(output)
            if reason is not None:
                exceptions.setdefault(reason, []).append(f"{_TITLES[output]}: {fault.title}")
    always = [
        f"{_TITLES[output]}: {fault.title}"
        for output in OUTPUTS
        for name, fault in FAULTS.items()
        if f"{output}-{name}" in CHEAP and output not in fault.impossible
    ]
    parts = [
        _HEAD,
        f"Outputs: {', '.join(_TITLES[output] for output in OUTPUTS)}.",
        f"In `make test-all`: {'; '.join(always)}.",
        "## Faults",
        "\n".join(f"- **{each.title}**: {each.what}" for each in FAULTS.values()),
        "## Exceptions",
        "\n".join(f"- {'; '.join(pairs)}: {reason}." for reason, pairs in exceptions.items()),
    ]
    return "\n\n".join(part.strip() for part in parts) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
