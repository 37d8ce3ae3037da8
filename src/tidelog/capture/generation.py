"""The documents of the state that belong to one event log."""

from __future__ import annotations

from typing import Final

from tidelog.capture.catalogue.capture_scope import SCOPE_KEY
from tidelog.capture.catalogue.catalogue_watch import SHAPES_KEY, VERSIONS_KEY
from tidelog.capture.catalogue.refused_tables import REFUSED_KEY, RefusedTables
from tidelog.capture.catalogue.relation_names import RELATIONS_KEY
from tidelog.capture.dumps.automatic import DUMPED_KEY, JUDGED_KEY, UNLOGGED_KEY
from tidelog.capture.dumps.coordinator import DUMP_PREFIX, REFETCH_KEY
from tidelog.capture.dumps.key_sets import KEY_SETS
from tidelog.ports import StateStore

GENERATION_KEY: Final = "log-generation"
GAP_KEY: Final = "log-gap"
"""Set while a gap in the log, that the user consented to, waits for its dump."""
_OF_ONE_LOG: Final = (
    DUMP_PREFIX, REFETCH_KEY, KEY_SETS, SHAPES_KEY, VERSIONS_KEY, JUDGED_KEY, DUMPED_KEY, GAP_KEY,
    UNLOGGED_KEY, REFUSED_KEY, RELATIONS_KEY, SCOPE_KEY,
)  # fmt: skip


def bind(state: StateStore, generation: str, refused: RefusedTables) -> None:
    """Progress belongs to one event log: with another one it would hide rows never dumped."""
    stored = state.get(GENERATION_KEY)
    if stored is not None and stored.value == generation:
        return
    if stored is not None:
        for prefix in _OF_ONE_LOG:
            for key in state.keys(prefix):
                state.delete(key)
        refused.clear()
    state.put(GENERATION_KEY, generation, None)
