"""What the walsender's errors mean."""

from __future__ import annotations

from tidelog.errors import ConnectionLostError, GapError, PreflightError, SourceError, TidelogError
from tidelog.sources.postgres.connect import lsn_text
from tidelog.sources.postgres.stream.slot_owner import START_ANEW


def refusal(doing: str, state: str, message: str, streamed_to: int | None) -> TidelogError:
    """What to raise.

    Args:
        doing: what was asked for.
        state: the error's SQLSTATE.
        message: its own words, without values.
        streamed_to: all before is acknowledged; None: nothing is streamed yet.
    """
    if "requested WAL segment" in message or state == "58P01":
        return GapError(
            f"{doing}: {message}; the source has removed WAL that was not captured yet. Drop "
            "the slot, start a new event log and dump the tables again"
        )
    if state == "42704" and streamed_to is not None:
        # pgoutput asks for nothing else by name once the stream is open.
        return GapError(
            f"{doing}: {message} where a change after {lsn_text(streamed_to)} was "
            "written, so it can't be decoded: the publication was dropped and made anew. "
            f"{START_ANEW}"
        )
    if state in ("22P05", "22021") and streamed_to is not None:
        # The server's text quotes the bytes. It would fail at the same place for ever.
        return GapError(
            f"{doing}: a value that was written after {lsn_text(streamed_to)} holds "
            "bytes without a character, which the server can't convert from the database's "
            f"encoding (SQLSTATE {state}). Mend the value first. {START_ANEW}"
        )
    if state == "42501":
        return PreflightError(f"{doing}: {message}: ALTER ROLE <user> REPLICATION")
    if state in ("42704", "55000"):  # undefined object, not in prerequisite state
        return SourceError(f"{doing}: {message}; `tidelog check` says what to do")
    return ConnectionLostError(f"{doing}: {message}")
