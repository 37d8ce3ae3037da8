"""How much longer commits take in the source than at best, told by the watermarks that chunks
write.

Pure: time is given. A watermark is a commit as others make it: it waits for the same cores, locks
and disk. The least round trip of the last minutes is what network and disk take of themselves; what
comes on top is waiting. A dump that has the source to itself delays nobody: the time counts only
while others commit too.
"""

from __future__ import annotations

from collections import deque

KEPT = 16  # watermarks looked at; the two longest are not: a disk may have stalled
LEFT_OUT = 2
STALE_S = 30.0  # a watermark says nothing any more after this
CALM_S = 300.0  # the least round trip is of the last one to two such spans
OWN_OF_CHUNK = 4  # transactions of one chunk in the source: two watermarks, a read, planning
OTHERS_A_SECOND = 50.0  # fewer may be our own looks, and nobody's hurry


class CommitTimes:
    """Whoever calls keeps the clock (seconds, monotonic) and a lock."""

    def __init__(self) -> None:
        self._marks: deque[float] = deque(maxlen=KEPT)
        self._marked_at = float("-inf")
        self._least = [float("inf"), float("inf")]  # of this span, of the one before
        self._span_at: float | None = None
        self._chunks = 0
        self._counted: tuple[float, int, int] | None = None  # when, commits, chunks by then
        self._others_s: float | None = None  # transactions of others, a second

    def wrote(self, now: float, seconds: float) -> None:
        """A watermark's commit took ``seconds``."""
        if self._span_at is None or now - self._span_at > CALM_S:
            self._span_at = now
            self._least = [float("inf"), self._least[0]]
        self._least[0] = min(self._least[0], seconds)
        if now - self._marked_at > STALE_S:
            self._marks.clear()
        self._marks.append(seconds)
        self._marked_at = now

    def chunk(self) -> None:
        """A chunk was read: its own transactions are not others'."""
        self._chunks += 1

    def count(self, now: float, commits: int | None) -> None:
        """The source's counter of commits; None: it has none."""
        if commits is None:
            self._counted = self._others_s = None
            return
        if self._counted is not None:
            at, commits_then, chunks_then = self._counted
            own = OWN_OF_CHUNK * (self._chunks - chunks_then)
            self._others_s = max(0, commits - commits_then - own) / max(now - at, 1e-3)
        self._counted = now, commits, self._chunks

    @property
    def others_commit(self) -> bool:
        """True also where it can't be known."""
        return self._others_s is None or self._others_s > OTHERS_A_SECOND

    def delay_s(self, now: float) -> float | None:
        """How much longer a commit takes now than at best; None: too little, or nothing, is known,
        or nobody else commits.
        """
        known = len(self._marks) == KEPT and now - self._marked_at <= STALE_S
        if not known or not self.others_commit:
            return None
        usual = sorted(self._marks)[:-LEFT_OUT]
        return sum(usual) / len(usual) - min(self._least)
