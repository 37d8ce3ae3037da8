"""The last results of `check`, `verify` and of processes, without passwords.

They are documents of the state store, for the status and the web page. Each configuration has its
own result of `check`: a check of a mistyped one says nothing about the capture that the page shows.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from typing import Any, Final

from tidelog.app.base.instances import this_holder
from tidelog.config import Config
from tidelog.config.loading import SECRET_OPTIONS
from tidelog.errors import AnotherLeaderError, StateConflictError, StateError, TidelogError
from tidelog.kinds.sections import SecretUrl
from tidelog.ports import StateStore
from tidelog.results import CheckFinding, TableComparison
from tidelog.state.opening import open_state, state_exists
from tidelog.system.processes import unix_ms

TEXT_CHARACTERS: Final = 1000
"""The longest text that is kept."""
PATIENCE_S: Final = 5.0
"""How long a process waits for the state store."""

# Results of `verify`, which may run at night.

VERIFY_KEY: Final = "verified"
COPIES_NAMED: Final = 100
"""How many of the differing copies are named."""
_COUNTS: Final = ("rows", "missing", "surplus", "different", "unsettled")
COPIES_KEPT: Final = 1000
"""How many results are kept: of the copies that differ, then of the newest."""


def store_results(
    state: StateStore,
    reports: Iterable[TableComparison],
    missed: Iterable[str] = (),
    *,
    whole: bool,
) -> None:
    """Store when which copies were compared, which differed, and which were ``missed``.

    A copy that differed stays stored until it is compared again, or all are (``whole``) and it was
    not among those that could not be compared; if verify has dumped all its differing keys, it is
    ``repaired``. A state store that fails is no failure of
    verify. ``copies``: when each was compared, whether it was
    equal, how many rows it had, how many differed, and remarks; no keys and no values.
    """
    reports, now_ms = list(reports), unix_ms()
    compared = {report.copy: report for report in reports}
    decided = {name for name, each in compared.items() if not (each.is_incomplete or each.left_out)}
    undecided = {*missed, *compared} - decided
    with suppress(StateError, StateConflictError):
        before = state.get(VERIFY_KEY)
        kept = {} if before is None or whole else before.value
        found = {} if before is None else before.value
        differ, repaired = (
            {
                name
                for name in found.get(field) or ()
                if name not in decided and (not whole or name in undecided)
            }
            for field in ("differ", "repaired")
        )
        left_out = set(kept.get("left_out") or ()) - compared.keys()
        not_compared = {*(kept.get("not_compared") or ()), *missed} - compared.keys()
        for name, report in compared.items():
            if report.left_out:
                left_out.add(name)
            elif report.is_incomplete:
                not_compared.add(name)
            elif not report.equal:
                (repaired if _is_repaired(report) else differ).add(name)
        copies = {} if before is None or whole else _stored_copies(before.value)
        copies |= {each.copy: _copy_result(each, now_ms) for each in reports}
        newest = sorted(copies.items(), key=lambda item: (item[1]["equal"], -item[1]["at_ms"]))
        value = {
            "at_ms": now_ms,
            "compared": len(compared.keys() - left_out - not_compared),
            "differ": sorted(differ)[:COPIES_NAMED],
            "repaired": sorted(repaired)[:COPIES_NAMED],
            "left_out": sorted(left_out)[:COPIES_NAMED],
            "not_compared": sorted(not_compared)[:COPIES_NAMED],
            "copies": [{"copy": name, **result} for name, result in newest[:COPIES_KEPT]],
        }
        state.put(VERIFY_KEY, value, None)


def _is_repaired(report: TableComparison) -> bool:
    """Return whether a dump of all keys that differ was accepted."""
    repair = report.repair
    if repair is None or not repair.is_requested or repair.left_out:
        return False
    return len(report.keys) >= report.missing + report.surplus + report.different


def _copy_result(report: TableComparison, now_ms: int) -> dict[str, Any]:
    counts = {name: getattr(report, name) for name in _COUNTS}
    found = {"at_ms": now_ms, "equal": report.equal, **counts, "note": report.note}
    return found | {"left_out": True} if report.left_out else found


def _stored_copies(value: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the stored results."""
    copies = {}
    for each in value.get("copies", ()):
        copies[each["copy"]] = {name: kept for name, kept in each.items() if name != "copy"}
    return copies


# Texts without passwords.

_USER_PASSWORD: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*://[^:/?#@\s]*):\S*@")
_URL_KEY: Final = re.compile(r"(https?://)[^:/?#@\s]+@", re.IGNORECASE)


def redacted(text: str) -> str:
    """Return the text without the passwords and keys of URLs in it."""
    return _URL_KEY.sub(r"\1***@", _USER_PASSWORD.sub(r"\1:***@", SecretUrl(text).redacted))


# Results of `check`.

CHECK_PREFIX: Final = "checked/"
CHECKS_KEPT: Final = 4
"""The number of configurations whose results are kept, the newest."""
FINDINGS_KEPT: Final = 200
"""The number of findings to keep, the worst first; there may be one for each table."""
_WORST_FIRST: Final = ("error", "warning", "ok")


def check_summary(findings: Sequence[CheckFinding]) -> dict[str, Any]:
    """Return ``at_ms``, the number of findings of each level, and the worst of them, `redacted`."""
    ranked = sorted(findings, key=lambda each: _WORST_FIRST.index(each.level))
    return {
        "at_ms": unix_ms(),
        "counts": {level: sum(each.level == level for each in findings) for level in _WORST_FIRST},
        "findings": [
            {name: redacted(text)[:TEXT_CHARACTERS] for name, text in each.to_dict().items()}
            for each in ranked[:FINDINGS_KEPT]
        ],
    }


def check_key(config: Config) -> str:
    """Return the key of the last result of this configuration. It depends on what `check` reads:
    source, log, state and outputs, without their secrets.
    """
    sections = config.model_dump(mode="json", include={"source", "log", "state", "outputs"})
    text = json.dumps(_without_secrets(sections), sort_keys=True, default=str)
    return CHECK_PREFIX + hashlib.sha256(text.encode()).hexdigest()[:16]


def _without_secrets(value: Any) -> Any:
    if isinstance(value, dict):
        kept = {name: each for name, each in value.items() if name not in SECRET_OPTIONS - {"url"}}
        return {name: _without_secrets(each) for name, each in kept.items()}
    if isinstance(value, list):
        return [_without_secrets(each) for each in value]
    return redacted(value) if isinstance(value, str) else value


def store_check_summary(config: Config, result: Mapping[str, Any]) -> None:
    """Store a `check_summary`, if there is a state store; check creates none. Raises StateError."""
    if not state_exists(config.state.location):
        return
    with closing(open_state(config.state.location)) as state:
        state.put(check_key(config), dict(result), None)
        stored = {key: state.get(key) for key in state.keys(CHECK_PREFIX)}
        ages = {key: each.value["at_ms"] for key, each in stored.items() if each is not None}
        for key in sorted(ages, key=lambda each: -ages[each])[CHECKS_KEPT:]:
            state.delete(key)


def store_check_result(config: Config, findings: Sequence[CheckFinding]) -> None:
    """As `store_check_summary`, but ignores a store that fails, hangs, or can't be written to.

    A check that could not connect is not stored: the password may be mistyped, and capture itself
    reports that it can't connect.
    """
    if any(each.check == "connection" and each.level == "error" for each in findings):
        return

    def keep() -> None:
        with suppress(TidelogError, OSError):
            store_check_summary(config, check_summary(findings))

    thread = threading.Thread(target=keep, name="tidelog-store-check", daemon=True)
    thread.start()
    thread.join(PATIENCE_S)


def stored_check_summary(state: StateStore, config: Config) -> dict[str, Any] | None:
    """Return the summary that was stored last for this configuration."""
    stored = state.get(check_key(config))
    return None if stored is None else stored.value


# Errors with which captures and pipelines ended, each kept until one ends in order.

CAPTURE: Final = "capture"
PIPELINE: Final = "pipeline/"
"""The part of a pipeline, before its name."""
_END_PREFIX: Final = "ended/"


@contextmanager
def storing_end(config: Config, part: str) -> Iterator[None]:
    """Store the error that is raised inside, and raise it. An end without one removes what is
    stored: an older error is then of no interest.

    A state store that fails, hangs, or is not there yet is no further error.

    Args:
        config: the configuration of the process.
        part: `CAPTURE`, or `PIPELINE` and the pipeline's name.
    """
    try:
        yield
    except AnotherLeaderError:
        raise  # the other process captures: nothing has ended
    except Exception as error:
        known = isinstance(error, TidelogError)
        text = str(error) if known else f"an internal error ({type(error).__name__})"
        value = {
            "at_ms": unix_ms(),
            "holder": this_holder(),
            "error": type(error).__name__,
            "reason": redacted(" ".join(text.split()))[:TEXT_CHARACTERS],
        }
        _in_state(config, lambda state: state.put(_END_PREFIX + part, value, None))
        raise
    else:
        _in_state(config, lambda state: _forget(state, _END_PREFIX + part))


def _forget(state: StateStore, key: str) -> None:
    if state.get(key) is not None:
        state.delete(key)


def _in_state(config: Config, work: Callable[[StateStore], object]) -> None:
    def run() -> None:
        with suppress(TidelogError, OSError):
            if state_exists(config.state.location):
                with closing(open_state(config.state.location)) as state:
                    work(state)

    thread = threading.Thread(target=run, name="tidelog-store-end", daemon=True)
    thread.start()
    thread.join(PATIENCE_S)


def last_end(
    state: StateStore, part: str, *, holder: str | None, since_ms: int
) -> dict[str, Any] | None:
    """Return ``at_ms``, ``holder`` and ``reason`` of the last error with which this part ended;
    None: there is none, or a process has led or ended in order since then.

    Args:
        state: the state store.
        part: as in `storing_end`.
        holder: the last process that led.
        since_ms: a time at which it led.
    """
    stored = state.get(_END_PREFIX + part)
    if stored is None:
        return None
    end: dict[str, Any] = stored.value
    return end if end["holder"] == holder or end["at_ms"] >= since_ms else None
