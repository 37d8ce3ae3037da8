"""The offsets of a pipeline's outputs, in the event log and at ``pipeline.checkpoint``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.support.build_log import BuiltLog

from tidelog.app.base.outputs import pipeline_consumers
from tidelog.config import Config
from tidelog.errors import OffsetAheadError, UsageError
from tidelog.eventlog import storage
from tidelog.eventlog.consumers import Consumers, Destination
from tidelog.eventlog.storage import LocalStorage
from tidelog.spark.pipeline import _ProgressStore

DESTINATIONS = {"lake": Destination("place", ("*.*",))}


class Documents:
    def __init__(self, directory: Path) -> None:
        self.built = BuiltLog(directory / "log")
        (directory / "checkpoint").mkdir()
        self.second = LocalStorage(directory / "checkpoint")
        self.consumers = Consumers(self.built.log.storage, self.second)
        self.of_the_log = Consumers(self.built.log.storage)

    def register(self, consumers: Consumers, **outputs: int) -> None:
        consumers.register("shop", min(outputs.values()), outputs, DESTINATIONS)

    @property
    def known(self) -> dict[str, int]:
        found = self.consumers.find("shop")
        return {} if found is None else dict(found.outputs)


@pytest.fixture
def documents(tmp_path: Path) -> Documents:
    return Documents(tmp_path)


def test_both_documents_are_written_and_either_may_be_lost(documents: Documents) -> None:
    assert documents.consumers.find("shop") is None
    documents.register(documents.consumers, lake=5, api=7)
    assert documents.known == {"lake": 5, "api": 7}
    documents.of_the_log.forget("shop")
    found = documents.consumers.find("shop")
    assert found is not None
    assert dict(found.outputs) == {"lake": 5, "api": 7}
    assert not found.destinations  # removed by somebody who has moved the places
    documents.register(documents.of_the_log, lake=6, api=7)
    documents.second.delete("consumers/shop.json")
    assert documents.known == {"lake": 6, "api": 7}


def test_the_later_offset_counts_of_the_outputs_that_the_log_knows(documents: Documents) -> None:
    documents.register(documents.consumers, lake=9, gone=3)
    documents.register(documents.of_the_log, lake=4, new=2)
    assert documents.known == {"lake": 9, "new": 2}
    documents.of_the_log.register("shop", 0)  # by capture, before the pipeline runs
    assert documents.known == {"lake": 9, "gone": 3}


def test_retention_asks_the_log_alone(documents: Documents) -> None:
    documents.register(documents.consumers, lake=9)
    documents.register(documents.of_the_log, lake=4)
    assert [each.offset for each in documents.consumers.all()] == [4]


def test_an_output_that_is_ahead_of_a_log_that_was_put_back_is_found(documents: Documents) -> None:
    """The log's own document was put back with it."""
    built, output = documents.built, "api"
    built.insert(built.table("public.t", {"id": "int64"}), "1")
    end = built.flush().next
    documents.register(documents.consumers, api=end + 100)
    documents.register(documents.of_the_log, api=end)
    none: Any = None
    book = _ProgressStore(built.log, documents.consumers, "shop", [output], {}, none)
    with pytest.raises(OffsetAheadError):
        built.log.check_offsets(book.offsets[output])


def configured(directory: Path, checkpoint: str, conf: dict[str, str]) -> Config:
    return Config.model_validate(
        {
            "source": {"kind": "postgres", "url": "postgresql://x/y", "tables": ["public.*"]},
            "log": {"path": str(directory / "log")},
            "pipeline": {"checkpoint": checkpoint, "conf": conf},
        }
    )


def test_a_place_that_can_hold_no_document_is_named(documents: Documents, tmp_path: Path) -> None:
    place = str(tmp_path / "a-file")
    Path(place).write_text("")
    with pytest.raises(UsageError, match=f"pipeline.checkpoint: {place}"):
        pipeline_consumers(configured(tmp_path, place, {}), documents.built.log)


def test_a_store_is_reached_as_the_settings_of_spark_say(
    documents: Documents, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(storage.OPTIONS_VARIABLE, "{}")
    conf = {"spark.hadoop.fs.s3a.endpoint": "http://store:1", "spark.hadoop.fs.s3a.access.key": "k"}
    conf |= {"spark.hadoop.fs.s3a.secret.key": "s", "spark.hadoop.fs.s3a.path.style.access": "true"}
    log = documents.built.log
    pipeline_consumers(configured(tmp_path, "s3a://bucket/checkpoint", conf), log)
    options = storage.options_of(f"s3://bucket/checkpoint/{log.generation}")
    assert options["access_key_id"] == "k"
    assert options["endpoint"] == "http://store:1"
