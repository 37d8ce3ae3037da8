"""What of the state a capture that begins to lead reads: all at once, where each request takes its
time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tidelog.app.dumps.resume_position import PASSED_KEY
from tidelog.app.sources.kinds import SourceKind
from tidelog.capture.activity.log import ACTIVITY_KEY
from tidelog.capture.catalogue.capture_scope import SCOPE_KEY
from tidelog.capture.catalogue.catalogue_watch import SHAPES_KEY
from tidelog.capture.catalogue.relation_names import RELATIONS_KEY
from tidelog.capture.catalogue.unsupported_tables import REFUSED_KEY
from tidelog.capture.dumps.missing_rows import REFETCH_KEY
from tidelog.capture.dumps.store import DUMP_PREFIX, OPTIONS_KEY
from tidelog.capture.generation import CONSENT_KEY, GAP_KEY, GENERATION_KEY, STATUS_KEY
from tidelog.capture.limits.log_guard import GIVEN_UP_KEY
from tidelog.capture.limits.pauses import LOG_KEY
from tidelog.config import Config
from tidelog.eventlog.owner import STORE_KEY
from tidelog.ports import StateStore
from tidelog.state.opening import sparing
from tidelog.state.prefetch import PrefetchingStateStore

KEYS: Final = (
    STORE_KEY, PASSED_KEY, CONSENT_KEY, GIVEN_UP_KEY, ACTIVITY_KEY, REFUSED_KEY, LOG_KEY,
    GENERATION_KEY, OPTIONS_KEY, REFETCH_KEY, SHAPES_KEY, SCOPE_KEY, GAP_KEY, RELATIONS_KEY,
    STATUS_KEY,
)  # fmt: skip


def read_ahead(state: StateStore, config: Config, kind: SourceKind) -> StateStore:
    """``state``, with what is read at a start asked for."""
    if not sparing(config.state.place):
        return state
    of_source: Sequence[str] = getattr(kind, "state_keys", ())  # a kind from elsewhere may not say
    return PrefetchingStateStore(state, (*KEYS, *of_source), [DUMP_PREFIX, f"{REFETCH_KEY}/"])
