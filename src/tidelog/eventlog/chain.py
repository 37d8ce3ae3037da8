"""Which files form the log: the chain of predecessors, walked back from the newest segment.

Roll-up and retention free names, and a frozen writer's late hard link to a freed name succeeds. So
a file counts only if a successor names it by (name, epoch, nonce). ``chain.json`` is rewritten
*before* names are freed; a reader that cached the chain notices that and walks it again.
"""

from __future__ import annotations

import itertools
import math
import threading
import time
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from copy import copy
from typing import Final

from tidelog.errors import (
    EventLogError,
    ForeignSegmentError,
    SegmentCorruptError,
    StorageError,
)
from tidelog.eventlog.log_files import (
    CHAIN_FILE,
    LOG_FILE,
    ChainState,
    LogInfo,
    load_chain_state,
    load_log,
)
from tidelog.eventlog.segments import SegmentFile, SegmentMeta, is_segment_name, segment_name
from tidelog.eventlog.storage_port import Storage, Tag

_WALK_ATTEMPTS: Final = 20
_TAIL_CHECK_EVERY_S: Final = 10.0  # if a check of the newest segment is a paid request
_PROBE_AT_MOST: Final = 16  # new segments one by one: each takes two requests


class Chain:
    """The segments from head to tail at one moment, without gaps. Immutable."""

    def __init__(
        self, segments: Sequence[SegmentMeta], state: ChainState, state_tag: Tag | None
    ) -> None:
        self.segments = segments
        self.state = state
        self.state_tag = state_tag
        self.firsts = [segment.first for segment in segments]

    @property
    def head(self) -> int:
        return self.state.head

    @property
    def tail(self) -> SegmentMeta | None:
        return self.segments[-1] if self.segments else None

    @property
    def next(self) -> int:
        """The offset of the next record."""
        return self.segments[-1].next if self.segments else self.state.head

    def between(self, start: int, end: int) -> Sequence[SegmentMeta]:
        """The segments with offsets in ``[start, end)``."""
        if start >= end:
            return ()
        low = max(bisect_right(self.firsts, start) - 1, 0)
        return self.segments[low : bisect_left(self.firsts, end)]

    def covering(self, offset: int) -> SegmentMeta | None:
        """The segment whose ``[first, next)`` contains ``offset``."""
        index = bisect_right(self.firsts, offset) - 1
        if index < 0 or offset >= self.segments[index].next:
            return None
        return self.segments[index]


class _BrokenError(Exception):
    """The walk found no predecessor: the log is damaged, or names were freed in the meantime."""

    def __init__(self, message: str, unreadable: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.unreadable = unreadable  # a segment that may be the predecessor


class ChainReader:
    """Walks the chain and caches segments' metadata. Thread-safe. ``read_at``: `time.monotonic` of
    the call of `refresh` that returned the cached chain.
    """

    def __init__(self, storage: Storage, info: LogInfo) -> None:
        self.storage = storage
        self.info = info
        self._log_tag = storage.tag(LOG_FILE)
        self._cache: dict[str, tuple[Tag, SegmentMeta]] = {}
        self._chain: Chain | None = None
        self._tail_checked_at = self.read_at = -math.inf
        self._lock = threading.Lock()

    def clone(self) -> ChainReader:
        """A reader with its own lock that starts with this one's cache. Metadata that either reads
        later is shared.
        """
        other = copy(self)
        other._lock = threading.Lock()
        return other

    def meta(self, name: str) -> SegmentMeta:
        """The current metadata of the file ``name``, which must be of this log's generation. Raises
        FileNotFoundError, SegmentCorruptError, ForeignSegmentError.
        """
        return self.meta_with_tag(name)[1]

    def meta_with_tag(self, name: str) -> tuple[Tag, SegmentMeta]:
        """`meta` with its file's tag: the current one, or an older one."""
        tag = self.storage.tag(name)
        if tag is None:
            raise FileNotFoundError(name)
        return tag, self._read_meta(tag, name)

    def _read_meta(self, tag: Tag, name: str) -> SegmentMeta:
        cached = self._cache.get(name)
        if cached is not None and cached[0] == tag:
            return cached[1]
        meta = SegmentFile(self.storage, name, columns=()).meta
        if meta.generation != self.info.generation:
            self._check_generation(self.storage.tag(LOG_FILE))
            raise ForeignSegmentError(
                f"{self.storage!r} segment {name} belongs to generation {meta.generation}, this "
                f"log is generation {self.info.generation}. Move the file out of the directory."
            )
        self._cache[name] = (tag, meta)
        return meta

    def newest(self) -> SegmentMeta | None:
        """The newest segment. It is on the chain: freed names are always older than the tail."""
        for _ in range(_WALK_ATTEMPTS):
            names = [name for name in self.storage.names() if is_segment_name(name)]
            if not names:
                return None
            try:
                return self.meta(names[-1])
            except FileNotFoundError:
                continue  # rolled up in the meantime: then a newer one exists
        raise EventLogError(f"{self.storage!r}: the newest segment vanishes while it is read.")

    @property
    def known(self) -> Chain | None:
        """The cached chain; None: it was not read yet."""
        with self._lock:
            return self._chain

    def tail_unchanged(self) -> bool:
        """Is the newest known segment unchanged? It is not if the storage was restored to an
        earlier state, or a host lost what it had not synchronised.
        """
        with self._lock:
            chain = self._chain
            if chain is None or chain.tail is None:
                return True
            return self._is_known(chain.tail.name, self.storage.tag(chain.tail.name))

    def _is_known(self, name: str, tag: Tag | None) -> bool:
        known = self._cache.get(name)
        return tag is not None and known is not None and known[0] == tag

    def tail(self) -> SegmentMeta | None:
        """The newest segment, as `newest`; if the chain is cached and its end still exists, only
        the segments after it are read, and nothing is listed.
        """
        with self._lock:
            chain = self._chain
            if chain is not None and chain.segments:
                chain = self._continue(chain, check_tail=True)
                if chain is not None:
                    self._chain = chain
                    return chain.tail
            self._chain = None
        return self.newest()

    def refresh(self, upto: int | None = None) -> Chain:
        """The current chain; cheap if little was appended since the last call. ``upto``: the caller
        needs only what is before it; if requests are paid, it may be some seconds old. Another log
        at the place is then noticed by a later request.
        """
        with self._lock:
            chain, now = self._chain, time.monotonic()
            recent = self.storage.parallel > 1 and now - self.read_at < _TAIL_CHECK_EVERY_S
            if upto is not None and chain is not None and recent and upto <= chain.next:
                return chain
            if chain is not None and chain.segments:
                brief = self.storage.parallel > 1 and upto is not None
                chain = self._continue(chain, brief=brief)
            else:
                self._check_generation(self.storage.tag(LOG_FILE))
            self._chain = self._walk() if chain is None or not chain.segments else chain
            self.read_at = now
            return self._chain

    def walk(self) -> Chain:
        """Walk the whole chain again."""
        with self._lock:
            self._check_generation(self.storage.tag(LOG_FILE))
            self._chain = self._walk()
            return self._chain

    def _check_generation(self, tag: Tag | None) -> None:
        if tag == self._log_tag:
            return
        info = load_log(self.storage)
        if info.generation != self.info.generation:
            raise ForeignSegmentError(
                f"{self.storage!r} was recreated: generation {self.info.generation} was opened, "
                f"{info.generation} is there now. Restart; outputs need a new dump."
            )
        self._log_tag = tag

    def _continue(
        self, chain: Chain, *, check_tail: bool = False, brief: bool = False
    ) -> Chain | None:
        """Return the known chain with the segments after it; None if all must be read again.

        Args:
            chain: the known chain.
            check_tail: check that its last segment is unchanged.
            brief: skip that check if a segment follows.
        """
        end, now, known = chain.segments[-1], time.monotonic(), list[Tag | None]()
        following = self.storage.tag(segment_name(end.next)) if brief else None
        if following is None:
            late = now - self._tail_checked_at >= _TAIL_CHECK_EVERY_S
            check_tail = check_tail or self.storage.parallel == 1 or late
            names = [LOG_FILE, segment_name(end.next), *([end.name] if check_tail else [])]
            log, following, *known = self.storage.tags_of(names)
            self._check_generation(log)
        if known:  # if an earlier state of the storage was restored, nothing would ever follow
            self._tail_checked_at = now
            if not self._is_known(end.name, known[0]):
                return None
        extended = self._read_following(chain, following)
        # Read after the probes: a stray under a freed name is always younger than this.
        if extended is None or self.storage.tag(CHAIN_FILE) != extended.state_tag:
            return None
        return extended

    def _read_following(self, chain: Chain, tag: Tag | None) -> Chain | None:
        """Append the segments that follow; ``tag``: of the first of them."""
        added: list[SegmentMeta] = []
        while tag is not None:
            tail = added[-1] if added else chain.segments[-1]
            try:
                meta = self._read_meta(tag, segment_name(tail.next))
            except FileNotFoundError:
                break
            if meta.pred != tail.tail:
                return None
            added.append(meta)
            if self.storage.parallel > 1 and len(added) == _PROBE_AT_MOST:
                return None  # far behind: a walk reads many segments in parallel
            tag = self.storage.tag(segment_name(meta.next))
        if not added:
            return chain
        return Chain([*chain.segments, *added], chain.state, chain.state_tag)

    def _walk(self) -> Chain:
        broken, unreadable = "unknown", None
        revision = None
        for attempt in range(_WALK_ATTEMPTS):
            state_tag = self.storage.tag(CHAIN_FILE)
            state = load_chain_state(self.storage, self.info)
            if state.revision == revision and attempt > 2:
                break  # nothing was freed since the last attempt: the log is damaged
            revision = state.revision
            try:
                segments = self._walk_back(state)
            except _BrokenError as error:
                broken, unreadable = error.message, error.unreadable
                time.sleep(0.002 * attempt)
                continue
            if self.storage.tag(CHAIN_FILE) != state_tag:
                continue
            kept = {segment.name for segment in segments}
            for name in [name for name in list(self._cache) if name not in kept]:
                self._cache.pop(name, None)  # another thread may have removed it
            return Chain(segments, state, state_tag)
        if unreadable is not None:
            with suppress(FileNotFoundError, ForeignSegmentError, SegmentCorruptError):
                self.meta(unreadable)  # raises NewerFormatError if a newer version wrote it
        raise SegmentCorruptError(
            f"{self.storage!r} is damaged: {broken}. Restore the file from a backup or a replica; "
            "without one, recreate the event log with a new dump."
        )

    def _walk_back(self, state: ChainState) -> list[SegmentMeta]:
        tags = self.storage.tags()
        if self._chain is not None and self._chain.state.revision == state.revision:
            # No name was freed since. A listing may lack files created while it was made.
            late = [segment.name for segment in self._chain.segments if segment.name not in tags]
            their = zip(late, self.storage.tags_of(late), strict=True)
            tags = {**tags, **{name: tag for name, tag in their if tag is not None}}
        names = sorted(name for name in tags if is_segment_name(name))
        if not names:
            if state.revision:
                raise _BrokenError("it has no segments any more")
            return []
        self._load_ahead(names, tags)
        try:
            segments = [self._read_meta(tags[names[-1]], names[-1])]
        except FileNotFoundError:
            raise _BrokenError(f"segment {names[-1]} vanished") from None
        while segments[-1].first > state.head:
            predecessor = self._predecessor(segments[-1], names, tags)
            # An interrupted roll-up leaves segments that the merged one also contains.
            while len(segments) > 1 and segments[-1].first < predecessor.next:
                segments.pop()
            if segments[-1].first != predecessor.next or segments[-1].pred != predecessor.tail:
                raise _BrokenError(f"segment {predecessor.name} does not join {segments[-1].name}")
            segments.append(predecessor)
        if segments[-1].first < state.head:
            raise _BrokenError(
                f"the log begins at offset {state.head} ({CHAIN_FILE}), which is inside segment "
                f"{segments[-1].name}"
            )
        segments.reverse()
        return segments

    def _load_ahead(self, names: Sequence[str], tags: Mapping[str, Tag]) -> None:
        """Fill the cache in parallel, if reading one file after the other would take long."""
        unknown = [name for name in names if self._cache.get(name, (None,))[0] != tags[name]]
        if self.storage.parallel == 1 or len(unknown) < 2:
            return

        def load(name: str) -> None:
            # An error here occurs again, and is handled, where the metadata is needed.
            with suppress(FileNotFoundError, EventLogError):
                self._read_meta(tags[name], name)

        with ThreadPoolExecutor(self.storage.parallel, "tidelog-metadata") as pool:
            for _ in pool.map(load, unknown):
                pass

    def _predecessor(
        self, segment: SegmentMeta, names: list[str], tags: Mapping[str, Tag]
    ) -> SegmentMeta:
        if segment.pred is None:
            raise _BrokenError(
                f"segment {segment.name} says that it is the log's first, but the log begins at "
                "a lower offset"
            )
        predecessor = self.find_predecessor(segment, names, tags)
        if isinstance(predecessor, SegmentMeta):
            return predecessor
        missing = (
            f"the segment before {segment.name} is missing: {segment.pred.name} "
            f"(epoch {segment.pred.epoch}, nonce {segment.pred.nonce})"
        )
        if predecessor is not None:
            missing = f"{missing}; {predecessor} cannot be read"
        raise _BrokenError(missing, predecessor)

    def find_predecessor(
        self, segment: SegmentMeta, names: Sequence[str], tags: Mapping[str, Tag]
    ) -> SegmentMeta | str | None:
        """The segment before ``segment``, or the one that it was rolled up into. Otherwise the name
        of the newest candidate that can't be read; otherwise None.
        """
        pred = segment.pred
        if pred is None:
            return None
        unreadable = None
        below = bisect_left(names, pred.name)
        # Its own name first; if it was rolled up, an older name that it was merged under.
        older = (names[at] for at in range(below - 1, -1, -1))
        for name in itertools.chain((pred.name,), older):
            if name not in tags:
                continue
            try:
                meta = self._read_meta(tags[name], name)
            except FileNotFoundError:
                continue
            except StorageError:
                raise
            except EventLogError:
                unreadable = unreadable or name
                continue
            if meta.tail == pred or segment.identity in meta.merged:
                return meta
        if pred.name not in tags:
            # A listing may pass a name before it is created, and still include its successor.
            with suppress(FileNotFoundError):
                meta = self.meta(pred.name)
                if meta.tail == pred:
                    return meta
        return unreadable
