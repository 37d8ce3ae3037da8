"""Options of all kinds that write files into a directory or an object store by themselves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from pydantic import Field, SecretStr, model_validator

from tidelog.eventlog.storage.opening import provide_options
from tidelog.kinds.sections import Location, Section, StorageOption
from tidelog.model.log_locations import is_object_store
from tidelog.outputs.base.reachability import check_directory_access
from tidelog.outputs.base.stores.hadoop_settings import store_options


class FileStoreSection(Section):
    """A mixin for an `OutputSection`."""

    path: Location
    storage_options: dict[str, StorageOption] = Field(
        default={},
        description="Options of the object store, as in `log.storage_options`. Unset: what "
        "`fs.s3a.*`, `fs.azure.*` or `fs.gs.*` in `pipeline.conf` say. What neither says is taken "
        "from the environment (`AWS_…`, `GOOGLE_…`, `AZURE_…`). All are treated as secrets.",
        examples=[{"region": "eu-central-1"}],
    )

    @model_validator(mode="after")
    def _options_have_a_store(self) -> Self:
        if self.storage_options and not is_object_store(self.path):
            raise ValueError("storage_options are for an object store; path is a local directory")
        return self

    def with_pipeline_conf(self, conf: Mapping[str, Any]) -> Self:
        """Returns the section with the options of ``pipeline.conf``, if it has none of its own.
        Raises ValueError, without values.
        """
        if self.storage_options or not is_object_store(self.path):
            return self
        found = store_options(self.path, conf)
        options = {name: SecretStr(value) for name, value in found.items()}
        return self.model_copy(update={"storage_options": options})

    def options(self) -> dict[str, str]:
        """Returns the options in clear text."""
        return {name: value.get_secret_value() for name, value in self.storage_options.items()}

    def provide_options(self) -> None:
        """Make the options known to this process and the processes that it starts; to Spark's
        tasks, once `tidelog.spark.datasource.source.register` is called.
        """
        provide_options(self.path, self.options())

    def probe(self) -> str | None:
        """Returns what `tidelog check` finds there. Raises OutputError, StorageError."""
        if not is_object_store(self.path):
            return check_directory_access(self.path)
        from tidelog.outputs.base.stores.object_store import ObjectFileStore

        self.provide_options()
        ObjectFileStore(self.path).names("")
        return f"{self.path} can be listed"
