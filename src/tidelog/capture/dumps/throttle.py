"""Decides when a dump's next chunk may begin, and how many readers may work. Pure: time is passed
in.

Three independent limits, each over all dumps:

- a pause between two chunks (``delay_ms``);
- rows a second (``rows_per_second``): a token bucket that may go into debt, because a chunk's rows
  are known only once it is read. A chunk that begins reserves as many as recent ones had, so that
  several readers do not spend the same budget;
- the automatic throttle: while capture, a replica, the SELECTs themselves or other sessions'
  commits are slower than their limit, readers are halved down to one, then pauses double up to
  `MAX_PAUSE_S`. For commits the share of time in which the one reader's SELECTs work is halved
  instead, down to `LEAST_PACE`: other sessions wait within milliseconds for the cores that a SELECT
  keeps busy. Well below the limit (`RECOVERED`) pauses halve and readers come back one step at a
  time; between the two nothing changes. That is the additive increase, multiplicative decrease of
  TCP (RFC 5681, section 3.1).

The throttle never stops a dump: a chunk begins at least every `MAX_PAUSE_S` (plus what the fixed
limits ask for). A replica that hangs for hours slows a dump to that and no further; the decision
and its reason are in `status`, so an operator sees why, and can lift the limit or pause the dump.
"""

from __future__ import annotations

from collections import deque
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from tidelog.model.dump_options import RunTimeOptions

KEPT = 16  # watermarks considered; without the two longest: a disk may have stalled
LEFT_OUT = 2
CALM_S = 300.0  # the shortest round trip is of the last one to two such spans
OWN_OF_CHUNK = 4  # transactions of one chunk in the source: two watermarks, a read, planning
OTHERS_A_SECOND = 50.0  # fewer may be our own queries, and need no protection

LEAST_WAIT_S = 1e-4
MAX_PAUSE_S = 5.0
FIRST_PAUSE_S = 0.1
RECOVERED = 0.5  # of a limit: below it, readers and pauses recover step by step
TIGHTEN_EVERY_S = 1.0  # lag follows a decision only after some time
LOOSEN_EVERY_S = 2.0
LOOSEN_PACE = 1.4
LOOSEN_SHARE = 1 / 8  # of the readers, and at least one, come back at each step
BURST_S = 0.25  # budget that may be saved up: makes up for readers that wake up late
STALE_S = 30.0  # the time of a SELECT or a watermark means nothing after this
LEAST_PACE = 1 / 16  # least share of time in which SELECTs work
MAX_SPREAD_S = 0.5  # limits how much longer a chunk's transaction, and its lock against DDL, last
SMOOTHING = 0.3  # weight of the newest chunk in the smoothed time and rows of a SELECT

Limit = Literal["rows_per_second", "lag", "replica_lag", "select_time", "commit_delay"]

_REASONS: dict[Limit, str] = {
    "rows_per_second": "as many rows a second are read as rows_per_second allows",
    "lag": "capture is further behind the source's log than max_lag_bytes",
    "replica_lag": "a replica of the source is further behind than max_replica_lag_ms",
    "select_time": "a chunk's SELECT takes longer than max_select_ms; smaller chunks may help",
    "commit_delay": "commits in the source take longer than at best by more than "
    "max_commit_delay_ms",
}


@dataclass(frozen=True, slots=True)
class ThrottleSettings:
    """Limits of dumps; 0: off."""

    delay_ms: int = 0
    rows_per_second: int = 0
    max_lag_bytes: int = 0
    max_replica_lag_ms: int = 0
    max_select_ms: int = 0
    max_commit_delay_ms: int = 0

    @classmethod
    def of(cls, options: RunTimeOptions) -> ThrottleSettings:
        return cls(**{limit.name: getattr(options, limit.name) for limit in fields(cls)})


class Throttle:
    """Applies the limits. The caller provides the clock (seconds, monotonic) and a lock.

    Call `on_chunk_read` after every `on_chunk_start`, with 0 rows if the chunk failed: otherwise
    its reserved rows count as read.
    """

    def __init__(self, settings: ThrottleSettings) -> None:
        self._settings = settings
        # pauses: when a chunk last began or was read
        self._touched_at = float("-inf")
        # rows a second: rows that may be read now (negative: debt), and the reserved rows
        self._budget_rows = 0.0
        self._budget_at: float | None = None
        self._reserved: list[float] = []
        self._chunk_rows: float | None = None
        # the automatic throttle: the last observation and decision
        self._lag_bytes: int | None = None
        self._replica_lag_s: float | None = None
        self._select_s: float | None = None
        self._commit_delay_s: float | None = None
        self._read_at = float("-inf")
        self._wanted = 1
        self._commits = CommitTimes()
        self._share = 1.0
        self._pause_s = 0.0
        self._pace = 1.0  # the share of time in which SELECTs work
        self._rest_s = 0.0  # pause after the last chunk that keeps to this pace
        self._limited_by: Limit | None = None
        self._decided_at = float("-inf")

    def change(self, settings: ThrottleSettings) -> None:
        """Change the limits. Decisions by a lifted limit are undone at once."""
        before, self._settings = self._settings, settings
        if not settings.rows_per_second or not before.rows_per_second:
            self._budget_rows, self._budget_at, self._reserved = 0.0, None, []
        elif settings.rows_per_second < before.rows_per_second:
            # A debt is time that the old limit required: the new one must not extend it.
            self._budget_rows *= settings.rows_per_second / before.rows_per_second
        if self._limited_by is not None and self._limit_of(self._limited_by) == 0:
            self._share, self._pause_s, self._limited_by = 1.0, 0.0, None
            self._pace, self._rest_s = 1.0, 0.0

    def wait_s(self, now: float) -> float:
        """0.0 if a chunk may begin now, else seconds after which to ask again."""
        self._refill(now)
        pause_s = max(self._settings.delay_ms / 1000, self._pause_s, self._rest_s)
        wait_s = max(self._touched_at + pause_s - now, self._debt_s())
        # Ignore a rounding error: a clock may not even advance by it.
        return wait_s if wait_s > LEAST_WAIT_S else 0.0

    def on_chunk_start(self, now: float) -> None:
        """Note that a chunk begins."""
        self._touched_at = now
        if self._settings.rows_per_second:
            self._refill(now)
            # Until a chunk was read, the first one reserves the budget of a whole second.
            unknown = self._chunk_rows is None
            reserved = float(self._settings.rows_per_second) if unknown else self._chunk_rows
            assert reserved is not None
            self._reserved.append(reserved)
            self._budget_rows -= reserved

    def spread_s(self) -> float:
        """Seconds over which the next chunk's SELECT is spread; 0.0: it is read at once."""
        if self._pace == 1.0 or self._select_s is None:
            return 0.0
        return min(self._select_s / self._pace, MAX_SPREAD_S)

    def on_watermark(self, now: float, seconds: float) -> None:
        """Note that a watermark was written and committed in ``seconds``."""
        self._commits.on_watermark(now, seconds)

    def on_chunk_read(self, now: float, rows: int, seconds: float, rested_s: float = 0.0) -> None:
        """Note that a chunk's SELECT returned ``rows`` after ``seconds``; 0 and 0.0 if it never
        ran. ``rested_s`` of them it paused, to be spread.
        """
        self._touched_at = now
        self._commits.on_chunk_read()
        if rows:
            self._chunk_rows = _smooth(self._chunk_rows, float(rows))
        if seconds:
            self._read_at = now
            self._select_s = _smooth(self._select_s, max(0.0, seconds - rested_s))
            rest_s = (seconds - rested_s) / self._pace - seconds
            self._rest_s = min(MAX_PAUSE_S, rest_s) if self._pace < 1.0 else 0.0
        if self._settings.rows_per_second:
            self._refill(now)
            self._budget_rows += (self._reserved.pop(0) if self._reserved else 0.0) - rows

    def observe(
        self,
        now: float,
        lag_bytes: int | None,
        replica_lag_s: float | None,
        commits: int | None = None,
    ) -> None:
        """Update the lag of capture and of the slowest replica, and the source's counter of
        commits; None: not known. Call it about once a second; decisions are made here.
        """
        self._lag_bytes, self._replica_lag_s = lag_bytes, replica_lag_s
        self._commits.on_commits(now, commits)
        self._commit_delay_s = self._commits.delay_s(now)
        worst, ratio = self._worst(now)
        since_s = now - self._decided_at
        if ratio > 1.0:
            self._limited_by = worst
            if since_s >= TIGHTEN_EVERY_S * 0.9:
                self._decided_at = now
                self._tighten(worst)
        elif ratio < RECOVERED and self._limited_by and since_s >= LOOSEN_EVERY_S * 0.9:
            self._decided_at = now
            self._loosen()

    def parallelism(self, wanted: int) -> int:
        """How many of ``wanted`` (≥ 1) readers may work now: 1..wanted."""
        self._wanted = wanted
        return max(1, min(wanted, int(wanted * self._share + 1e-9)))

    def to_json(self) -> dict[str, Any]:
        """Settings, observations and the decision; no cell values."""
        limited_by = self._limited_by
        if limited_by is None and self._settings.rows_per_second and self._budget_rows < 0:
            limited_by = "rows_per_second"
        return {
            "settings": asdict(self._settings),
            "observed": {
                "lag_bytes": self._lag_bytes,
                "replica_lag_ms": _ms(self._replica_lag_s),
                "select_ms": _ms(self._select_s),
                "commit_delay_ms": _tenths_ms(self._commit_delay_s),
            },
            "decision": {
                "limited_by": limited_by,
                "parallelism_share": round(self._share, 4),
                "pause_ms": _ms(self._pause_s),
                "pace": round(self._pace, 4),
                "reason": "" if limited_by is None else _REASONS[limited_by],
            },
        }

    # ------------------------------------------------------------ rows a second

    def _refill(self, now: float) -> None:
        limit = self._settings.rows_per_second
        if not limit:
            return
        if self._budget_at is not None:
            earned = limit * max(0.0, now - self._budget_at)
            self._budget_rows = min(self._budget_rows + earned, limit * BURST_S)
        self._budget_at = now

    def _debt_s(self) -> float:
        limit = self._settings.rows_per_second
        return -self._budget_rows / limit if limit else 0.0

    # ------------------------------------------------------------ the automatic throttle

    def _limit_of(self, limit: Limit) -> float:
        settings = self._settings
        limits: dict[Limit, float] = {
            "rows_per_second": settings.rows_per_second,
            "lag": settings.max_lag_bytes,
            "replica_lag": settings.max_replica_lag_ms / 1000,
            "select_time": settings.max_select_ms / 1000,
            "commit_delay": settings.max_commit_delay_ms / 1000,
        }
        return limits[limit]

    def _worst(self, now: float) -> tuple[Limit, float]:
        """The limit that is exceeded most (or nearest), and observed / limit."""
        select_s = self._select_s if now - self._read_at <= STALE_S else None
        seen: list[tuple[Limit, float | None]] = [
            ("lag", self._lag_bytes),
            ("replica_lag", self._replica_lag_s),
            ("select_time", select_s),
            ("commit_delay", self._commit_delay_s),
        ]
        ratios = [
            (value / self._limit_of(limit), limit)
            for limit, value in seen
            if value is not None and self._limit_of(limit) > 0
        ]
        ratio, limit = max(ratios, default=(0.0, "lag"))
        return limit, ratio

    def _tighten(self, limit: Limit) -> None:
        if self.parallelism(self._wanted) > 1:
            self._share = max(self._share / 2, 1 / self._wanted)
            return
        if limit == "commit_delay":
            self._pace = max(LEAST_PACE, self._pace / 2)
            return
        longest_s = MAX_PAUSE_S
        if limit == "select_time":
            # Pauses do not help a SELECT that is itself slow: at most as long as it took.
            longest_s = min(longest_s, self._select_s or 0.0)
        self._pause_s = max(self._pause_s, min(longest_s, max(FIRST_PAUSE_S, self._pause_s * 2)))

    def _loosen(self) -> None:
        if self._pause_s:
            halved = self._pause_s / 2
            self._pause_s = halved if halved >= FIRST_PAUSE_S else 0.0
        elif self._pace < 1.0:
            self._pace = min(1.0, self._pace * LOOSEN_PACE)
            self._rest_s = 0.0
        else:
            self._share = min(1.0, self._share + max(LOOSEN_SHARE, 1 / self._wanted))
        if not self._pause_s and self._pace >= 1.0 and self._share >= 1.0:
            self._limited_by = None


def _smooth(before: float | None, value: float) -> float:
    return value if before is None else before + SMOOTHING * (value - before)


def _ms(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1000)


def _tenths_ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 1)


class CommitTimes:
    """Measures how much longer commits in the source take than at best, from the watermarks that
    chunks write.

    A watermark is a commit like others: it waits for the same cores, locks and disk. The shortest
    round trip of the last minutes is the time of network and disk alone; the rest is waiting. A
    dump that has the source to itself delays nobody: the time counts only while others commit too.

    The caller provides the clock (seconds, monotonic) and a lock.
    """

    def __init__(self) -> None:
        self._marks: deque[float] = deque(maxlen=KEPT)
        self._marked_at = float("-inf")
        self._least = [float("inf"), float("inf")]  # of the current span and the one before
        self._span_at: float | None = None
        self._chunks = 0
        self._counted: tuple[float, int, int] | None = None  # when, commits, chunks until then
        self._others_s: float | None = None  # transactions of others per second

    def on_watermark(self, now: float, seconds: float) -> None:
        """Note that a watermark's commit took ``seconds``."""
        if self._span_at is None or now - self._span_at > CALM_S:
            self._span_at = now
            self._least = [float("inf"), self._least[0]]
        self._least[0] = min(self._least[0], seconds)
        if now - self._marked_at > STALE_S:
            self._marks.clear()
        self._marks.append(seconds)
        self._marked_at = now

    def on_chunk_read(self) -> None:
        """Count a chunk: its transactions are our own."""
        self._chunks += 1

    def on_commits(self, now: float, commits: int | None) -> None:
        """Update the source's counter of commits; None: it has none."""
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
        """True also if it can't be known."""
        return self._others_s is None or self._others_s > OTHERS_A_SECOND

    def delay_s(self, now: float) -> float | None:
        """The delay of a commit over the best; None: too few samples, or no one else commits."""
        known = len(self._marks) == KEPT and now - self._marked_at <= STALE_S
        if not known or not self.others_commit:
            return None
        usual = sorted(self._marks)[:-LEFT_OUT]
        return sum(usual) / len(usual) - min(self._least)
