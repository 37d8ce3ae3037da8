"""The page of the suite is the suite's."""

from __future__ import annotations

from tests.faults.outputs.cells import OUTPUTS
from tests.faults.outputs.page import PAGE, page


def test_page_is_made_of_the_cells() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "python -m tests.faults.outputs.page"


def test_each_output_of_the_table_has_a_target() -> None:
    from tests.faults.outputs.targets import TARGETS

    assert tuple(TARGETS) == OUTPUTS
