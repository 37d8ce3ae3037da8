"""What Delta's copies do, Iceberg's do."""

from __future__ import annotations

import pytest
from tests.integration.spark.test_delta import (  # noqa: F401
    test_a_completed_dump_deletes_absent_rows,
    test_a_crash_between_merge_and_checkpoint_applies_the_batch_once,
    test_a_dump_that_completes_in_a_later_batch_deletes_too,
    test_a_key_change_moves_the_row,
    test_a_lost_checkpoint_changes_nothing,
    test_a_table_without_key_is_refused_with_its_name,
    test_an_undecodable_value_leaves_out_its_table_alone_and_stays_private,
    test_changes_reach_the_table_and_versions_are_kept,
    test_folds_in_parts_and_blocks_give_the_same,
    test_many_tables_and_patterns,
    test_the_stream_follows_the_log_and_stops,
    test_truncate_empties_and_later_rows_stay,
)
from tests.integration.spark.test_delta_layouts import (  # noqa: F401
    test_hard_deletes_may_become_soft,
    test_soft_deletes_may_become_hard,
    test_steps_shape_route_and_filter_the_copy,
    test_two_tables_are_not_routed_to_one_copy,
    test_what_becomes_of_changed_columns_is_chosen,
)
from tests.integration.spark.test_foreign_rows import (  # noqa: F401
    test_a_row_without_a_version_gives_way_to_any_state_of_its_key,
)

pytestmark = [pytest.mark.spark, pytest.mark.thorough]
