"""Is everything set up for capture?"""

from __future__ import annotations

import shutil
import ssl
from collections.abc import Iterator, Sequence
from pathlib import Path
from shlex import quote
from typing import Any

from tidelog.app.capture.channels import check_channels, notification_place, signal_place
from tidelog.app.log_location import log_place
from tidelog.app.pipeline.dependencies import (
    check_installed,
    check_spark,
    installed_versions,
    untested_versions,
)
from tidelog.app.pipeline.destinations import check_apart
from tidelog.app.sources.kinds import source_kind
from tidelog.app.table_patterns import unmatched
from tidelog.config import Config
from tidelog.errors import ConfigError, StorageError, TidelogError, UsageError
from tidelog.eventlog.log_files import LOG_FILE
from tidelog.eventlog.storage.opening import storage_at
from tidelog.kinds.adapters import OUTPUT_KINDS
from tidelog.model.log_locations import is_url
from tidelog.model.patterns import matches
from tidelog.model.printable import printable
from tidelog.model.schema import TableName, TableSchema
from tidelog.outputs.registry import OutputSection
from tidelog.ports import Catalogue, NamingOutputKind, ProbedOutputKind, SourceId, TargetTable
from tidelog.sources.scripts import script
from tidelog.state.opening import state_path
from tidelog.system.private_files import seen_by_others, users_of


def check_names(config: Config, catalogue: Catalogue) -> Iterator[dict[str, Any]]:
    """A warning for each table that an output would leave out."""
    if not config.outputs:
        return
    schemas = list(_schemas(config, catalogue))
    for output in config.outputs:
        kind = OUTPUT_KINDS.get(output.kind)
        if not isinstance(kind, NamingOutputKind):
            continue
        try:
            for text in kind.refused_names(output, list(_delivered(output, schemas))):
                message, _, fix = text.rpartition(". ")
                found = {"check": f"output {output.name}", "level": "warning", "fix": fix}
                yield found | {"message": f"a table would be left out: {message}"}
        except (TidelogError, ModuleNotFoundError):
            continue  # told by the looks at Spark and at the destination


def _schemas(config: Config, catalogue: Catalogue) -> Iterator[TableSchema]:
    for table in catalogue.tables(config.source.tables):
        try:
            shape = catalogue.shape(table)
        except TidelogError:
            continue  # told by the look at the source
        if shape is not None:
            yield shape.schema


def _delivered(output: OutputSection, schemas: Sequence[TableSchema]) -> Iterator[TargetTable]:
    from tidelog.outputs.base.sections import SteppedSection
    from tidelog.outputs.delivery_settings import transform_steps
    from tidelog.spark.transforms import named_table

    steps = transform_steps(output) if isinstance(output, SteppedSection) else ()
    for schema in schemas:
        if matches(output.tables, schema.table):
            found = named_table(schema, steps, SourceId("", "", ""))
            if found is not None:
                yield found


LEVELS = {"ok": "ok", "warn": "warning", "fail": "error"}
LEAST_FREE_BYTES = 1 << 30


def check(config: Config) -> list[dict[str, Any]]:
    """What `tidelog check` found: ``check``, ``level`` (ok, warning, error), ``message``, ``fix``.

    It changes nothing.
    """
    findings = [
        {
            "check": finding.name,
            "level": LEVELS[finding.level],
            "message": finding.message,
            "fix": finding.remedy,
        }
        for finding in source_kind(config).check()
    ]
    on_store = is_url(config.log.path)
    findings.append(_check_store(config) if on_store else _check_disk(config))
    if all(finding["level"] != "error" for finding in findings):
        findings += _check_patterns(config)
    findings += check_modes(config)
    if config.outputs:
        findings += _check_spark(config)
    findings += _check_outputs(config)
    findings += _check_kafka(config)
    return [*findings, *check_authorities(config), *_check_places(config)]


def check_script(config: Config) -> tuple[list[str], bool]:
    """The SQL that `check` prints, as the lines of one script, and whether nothing that was found
    has to be mended. Only the source is asked.
    """
    findings = source_kind(config).check()
    return list(script(findings)), all(finding.level != "fail" for finding in findings)


def _check_store(config: Config) -> dict[str, Any]:
    """Can the event log's object store be listed and read?"""
    place = log_place(config)
    try:
        storage = storage_at(place)
        storage.names()
        there = storage.tag(LOG_FILE) is not None
    except (StorageError, UsageError) as error:
        message, _, fix = str(error).partition(". ")
        return {"check": "log", "level": "error", "message": message, "fix": fix or message}
    found = "holds the event log" if there else "can be listed; it holds no event log yet"
    return {"check": "log", "level": "ok", "message": f"{place} {found}", "fix": ""}


def _check_disk(config: Config) -> dict[str, Any]:
    """Room for the event log."""
    place = Path(config.log.path)
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    enough = free >= LEAST_FREE_BYTES
    return {
        "check": "disk",
        "level": "ok" if enough else "warning",
        "message": f"{free >> 20:,} MiB are free for the event log at {config.log.path}",
        "fix": "" if enough else "make room, or set log.retention",
    }


def check_modes(config: Config) -> Iterator[dict[str, Any]]:
    """Can other users of this machine read rows and state?"""
    places = {"state": state_path(config.state.place)}
    if not is_url(config.log.path):
        places["log"] = Path(config.log.path)
    if config.control.notification_file is not None:
        places["notifications"] = Path(config.control.notification_file)
    for output in config.outputs:
        letters = getattr(output, "dead_letter", None)
        if letters is not None and not is_url(letters.path):
            places[f"dead letters of {output.name}"] = Path(letters.path)
    for name, place in sorted(places.items()):
        if place is None:
            continue
        try:
            users, seen = users_of(place), seen_by_others(place)
        except OSError:
            continue  # not there yet, or not ours to look at: capture will say so
        files = f"-R {quote(str(place))}" if place.is_dir() else f"{quote(str(place))}*"
        yield {
            "check": f"{name} files",
            "level": "warning" if seen else "ok",
            "message": f"{place} is {'not ' if seen else ''}for its {users} alone",
            "fix": f"chmod {'o-rwx' if 'group' in users else 'go-rwx'} {files}" if seen else "",
        }


def _check_patterns(config: Config) -> Iterator[dict[str, Any]]:
    """Does each pattern name a table, in the source and in each output, and can the outputs hold
    the names?
    """
    catalogue = source_kind(config).catalogue()
    try:
        captured = catalogue.tables(config.source.tables)
        lost = [("source.tables", p) for p in unmatched(config.source.tables, catalogue)]
        names = list(check_names(config, catalogue))
    except TidelogError:
        return  # told by what looked at the source
    finally:
        catalogue.close()
    if not captured:
        return  # told already
    for output in config.outputs:
        place = f"tables of output {output.name}"
        lost += [(place, p) for p in output.tables if not any(matches([p], t) for t in captured)]
    for place, pattern in lost:
        of = "table" if place == "source.tables" else "captured table"
        yield {
            "check": "tables",
            "level": "warning",
            "message": f"{place}: no {of} matches '{printable(pattern)}', others do",
            "fix": _spelled_so(pattern, captured)
            or "correct it, or leave it if its tables are yet to be created",
        }
    yield from names


def _spelled_so(pattern: str, captured: Sequence[TableName]) -> str:
    """How to write the pattern of an output, where only its case is another one: a server may take
    names in any, and capture then does; the event log has them as the server lists them.
    """
    for table in captured:
        if matches([pattern.lower()], TableName(table.namespace.lower(), table.name.lower())):
            return f"write names as the server lists them, upper and lower case too: {table}"
    return ""


def _check_spark(config: Config) -> Iterator[dict[str, Any]]:
    """Can the pipeline run here too, with the outputs that are configured? A host that only
    captures needs no Spark.
    """
    found = {"check": "spark", "level": "ok", "fix": ""}
    try:
        check_installed(config.outputs)
        check_spark(config)
    except UsageError as error:
        found["level"] = "warning"
        found["message"] = f"on this host only `tidelog capture` can run. {error}"
    else:
        found["message"] = f"{installed_versions()} fit the outputs"
        if doubts := "; ".join(untested_versions()):
            found["level"] = "warning"
            found["message"] = f"it may not run: {doubts}"
    yield found


def _check_outputs(config: Config) -> Iterator[dict[str, Any]]:
    """Can this host reach each destination? Capture goes on without them, and the pipeline waits
    for them.
    """
    for output in config.outputs:
        kind = OUTPUT_KINDS.get(output.kind)
        if not isinstance(kind, ProbedOutputKind):
            continue
        found = {"check": f"output {output.name}", "level": "ok", "fix": ""}
        try:
            told = kind.probe(output)
        except TidelogError as error:
            found["level"], told = "warning", " ".join(str(error).split())
        except ModuleNotFoundError:
            continue  # told with Spark, by the command that mends it
        except Exception as error:  # noqa: BLE001 - of a kind from elsewhere: the rest is told
            found["level"], told = "warning", f"can't be looked at ({type(error).__name__})"
        if told is not None:
            yield found | {"message": told}


def _check_kafka(config: Config) -> Iterator[dict[str, Any]]:
    """Are the topics of signals and notifications there? Capture goes on without them."""
    try:
        check_channels(config)
        places = [
            ("signal_kafka", signal_place(config)),
            ("notification_kafka", notification_place(config)),
        ]
    except UsageError as error:
        yield {"check": "channels", "level": "error", "message": str(error), "fix": ""}
        return
    for name, place in places:
        if place is None:
            continue
        from tidelog.control.channels.kafka import (
            ONE_PARTITION,
            ChannelError,
            several_partitions,
            topic_facts,
        )

        found = {"check": f"control.{name}", "level": "warning"}
        try:
            partitions = topic_facts(place).partitions
        except ChannelError as error:
            found |= {"message": f"topic {place.topic}: {error.reason}", "fix": error.remedy}
        else:
            if partitions == 1 or name != "signal_kafka":
                found |= {"level": "ok", "message": f"topic {place.topic} is there", "fix": ""}
            else:
                found["message"] = f"topic {place.topic}: {several_partitions(partitions)}"
                found["fix"] = ONE_PARTITION
        yield found


def _check_places(config: Config) -> Iterator[dict[str, Any]]:
    """Do outputs write where another one does?"""
    try:
        check_apart(config)
    except ConfigError as error:
        message, _, fix = str(error).partition(". ")
        yield {"check": "outputs", "level": "error", "message": message, "fix": fix}


def check_authorities(config: Config) -> Iterator[dict[str, Any]]:
    """Do the files hold certificates that outputs name? One finding for each."""
    for output in config.outputs:
        ca_file = getattr(output, "ca_file", None)
        if ca_file is None:
            continue
        found = {"check": f"output {output.name}", "level": "ok", "fix": ""}
        try:
            ssl.create_default_context(cafile=ca_file)
            found["message"] = f"ca_file {ca_file} holds certificates"
        except OSError as error:
            why = "holds no certificate" if isinstance(error, ssl.SSLError) else error.strerror
            found["level"], found["message"] = "error", f"ca_file {ca_file}: {why}"
            found["fix"] = "name a file of certificates of authorities, PEM"
        yield found
