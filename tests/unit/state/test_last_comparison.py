"""The stored results of verify: which copies differ, until they are found equal."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from tidelog.app.base.last_results import COPIES_KEPT, VERIFY_KEY, store_results
from tidelog.results import RepairRequest, TableComparison
from tidelog.state.sqlite import SqliteState


def report(table: str, *, equal: bool, **more: Any) -> TableComparison:
    return TableComparison("lake", table, equal, **more)


def test_a_copy_that_differed_is_reported_until_it_is_compared_again(tmp_path: Path) -> None:
    state = SqliteState(f"sqlite:///{tmp_path}/state.db")

    def noted(*reports: TableComparison, whole: bool = False) -> list[str]:
        store_results(state, reports, whole=whole)
        document = state.get(VERIFY_KEY)
        assert document is not None
        assert document.value["compared"] == len(reports)
        found: list[str] = document.value["differ"]
        return found

    a, b = report("public.a", equal=False), report("public.b", equal=False)
    assert noted(a, b, whole=True) == ["public.a in lake", "public.b in lake"]
    assert noted(report("public.c", equal=True)) == ["public.a in lake", "public.b in lake"]
    assert noted(report("public.a", equal=True)) == ["public.b in lake"]
    # b is captured no more
    assert noted(report("public.a", equal=True), whole=True) == []
    state.close()


def test_a_copy_that_its_output_leaves_out_does_not_differ(tmp_path: Path) -> None:
    state = SqliteState(f"sqlite:///{tmp_path}/state.db")

    def noted(**more: Any) -> tuple[int, list[str], list[str]]:
        store_results(state, [report("public.a", equal=False, **more)], whole=False)
        document = state.get(VERIFY_KEY)
        assert document is not None
        return tuple(document.value[name] for name in ("compared", "differ", "left_out"))  # type: ignore[return-value]

    assert noted(left_out=True, note="a name") == (0, [], ["public.a in lake"])
    assert noted(missing=1) == (1, ["public.a in lake"], [])
    state.close()


def test_a_copy_is_repaired_if_all_its_keys_are_dumped_again(tmp_path: Path) -> None:
    state = SqliteState(f"sqlite:///{tmp_path}/state.db")
    repair = RepairRequest("r", "done", None, left_out=0)

    def noted(**more: Any) -> tuple[list[str], list[str]]:
        differs = report("public.a", equal=False, missing=2, keys=(("1",), ("2",)), repair=repair)
        store_results(state, [replace(differs, **more)], whole=False)
        document = state.get(VERIFY_KEY)
        assert document is not None
        return document.value["differ"], document.value["repaired"]

    copy = ["public.a in lake"]
    assert noted() == ([], copy)
    assert noted(different=7) == (copy, [])  # not all keys are named
    assert noted(repair=replace(repair, error="refused")) == (copy, [])
    assert noted(repair=replace(repair, left_out=1)) == (copy, [])
    assert noted(equal=True) == ([], [])
    state.close()


def test_a_difference_is_not_forgotten_where_its_copy_could_not_be_compared(tmp_path: Path) -> None:
    state = SqliteState(f"sqlite:///{tmp_path}/state.db")
    differs = report("public.a", equal=False, missing=2)
    for whole in (True, False):
        store_results(state, [differs], whole=whole)
        missed = report("public.a", equal=False, note="the output is behind")
        assert missed.is_incomplete
        for reports, named in (([missed], []), ([], ["public.a in lake"])):
            store_results(state, reports, named, whole=whole)
            document = state.get(VERIFY_KEY)
            assert document is not None
            assert document.value["differ"] == ["public.a in lake"]
            assert document.value["not_compared"] == ["public.a in lake"]
        store_results(state, [report("public.a", equal=True)], whole=whole)
        document = state.get(VERIFY_KEY)
        assert document is not None
        assert document.value["differ"] == []
    state.close()


def test_the_result_of_each_copy_is_kept_without_keys(tmp_path: Path) -> None:
    state = SqliteState(f"sqlite:///{tmp_path}/state.db")
    differs = report("public.a", equal=False, rows=9, missing=2, keys=(("secret",),))
    store_results(state, [differs, report("public.b", equal=True)], whole=True)
    store_results(state, [report("public.c", equal=True)], whole=False)
    document = state.get(VERIFY_KEY)
    assert document is not None
    assert "secret" not in json.dumps(document.value)
    copies = {each["copy"]: each for each in document.value["copies"]}
    assert next(iter(copies)) == "public.a in lake"  # what differs comes first
    assert (copies["public.a in lake"]["missing"], copies["public.a in lake"]["rows"]) == (2, 9)
    assert copies["public.c in lake"]["equal"]
    store_results(state, [report(f"t{n}", equal=True) for n in range(COPIES_KEPT + 9)], whole=False)
    document = state.get(VERIFY_KEY)
    assert document is not None
    assert len(document.value["copies"]) == COPIES_KEPT
    assert document.value["copies"][0]["copy"] == "public.a in lake"
    state.close()
