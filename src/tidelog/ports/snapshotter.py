"""Decides what a start of capture dumps."""

from __future__ import annotations


class Snapshotter:
    """For ``source.snapshot: custom``: derive from it and override what differs.

    The answers here are those of ``initial``. It is created without arguments, and called whenever
    a capture begins to lead: at a start, and after a lost connection or lease.
    """

    def should_snapshot(self, begun: bool, unfinished: bool) -> bool:
        """Return whether to dump every captured table now.

        Args:
            begun: whether a dump of all tables was requested at some start in this event log's
                life.
            unfinished: whether a dump of a start is not done. It resumes; with True all tables are
                dumped again instead, if this is another start.
        """
        return not begun

    def should_stream(self) -> bool:
        """Return whether to read the log; False: capture ends when all dumps are done."""
        return True

    def should_snapshot_on_gap(self) -> bool:
        """Return whether to resume after a gap in the source's log, and dump every table.

        False: capture stops, with a `tidelog.errors.GapError`.
        """
        return False

    def should_snapshot_new_tables(self) -> bool:
        """Return whether to dump later tables; False: only if the log may lack their first rows."""
        return True
