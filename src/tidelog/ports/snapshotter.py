"""What a start dumps, as a class decides."""

from __future__ import annotations


class Snapshotter:
    """For ``source.snapshot: custom``: derive from it and override what differs.

    The answers here are those of ``initial``. It is made without arguments, and asked whenever a
    capture begins to lead: at a start, and after a lost connection or lease.
    """

    def should_snapshot(self, begun: bool, unfinished: bool) -> bool:
        """Dump every captured table now?

        Args:
            begun: a dump of all tables was asked for at some start in this event log's life.
            unfinished: and a dump of a start is not done. It goes on; with True all tables are
                dumped anew instead, if this is another start.
        """
        return not begun

    def should_stream(self) -> bool:
        """False: capture ends when all dumps are done."""
        return True

    def should_snapshot_on_gap(self) -> bool:
        """Where the source can no longer give what was missed: go on behind the gap, and dump every
        table? False: capture stops, with a `tidelog.errors.GapError`.
        """
        return False

    def should_snapshot_new_tables(self) -> bool:
        """Dump tables that appear later? False: only those whose first rows the log may lack."""
        return True
