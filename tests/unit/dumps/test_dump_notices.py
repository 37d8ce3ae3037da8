"""What notifications of a dump name."""

from __future__ import annotations

from tidelog.capture.dumps.dump_notifications import NAMED_TABLES, DumpNotices
from tidelog.capture.dumps.state import DumpState, TableInput, TableProgress
from tidelog.capture.notifications import Notification


def test_the_notification_of_one_of_many_tables_names_no_other() -> None:
    """Each notification is stored: their bytes must not grow with the square of the tables."""
    told: list[Notification] = []
    tables = [TableProgress(f"public.t{number}") for number in range(NAMED_TABLES + 1)]
    dump, notices = DumpState("d", 1, tables), DumpNotices(told.append)
    notices.started(dump)
    tables[3].transition(TableInput.BEGIN)
    notices.scanned(dump, tables[3])
    dump.tables.pop()
    notices.scanned(dump, tables[3])
    every = [each.data["data_collections"].count(",") + 1 for each in told]
    assert every == [NAMED_TABLES + 1, 1, NAMED_TABLES]
    assert told[1].data["data_collections"] == "public.t3"
