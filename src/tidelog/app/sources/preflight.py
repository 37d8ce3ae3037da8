"""Checks that database, event log, outputs and channels are ready for capture."""

from __future__ import annotations

import ssl
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from itertools import groupby
from pathlib import Path
from shlex import quote

from tidelog.app.base.channels import check_channels, notification_location, signal_location
from tidelog.app.base.log_location import event_log_path, local_directories
from tidelog.app.base.outputs import (
    check_installed,
    check_remote_server,
    check_spark,
    colliding_outputs,
    installed_versions,
    misplaced_outputs,
    remote_of,
    untested_versions,
)
from tidelog.app.base.table_patterns import (
    SOURCE_TABLES,
    WRONG_EXCLUSION,
    unmatched_exclusions,
    unmatched_patterns,
)
from tidelog.app.sources.kinds import source_kind
from tidelog.capture.catalogue_watch import SHAPES_KEY
from tidelog.config import Config
from tidelog.errors import (
    ConfigError,
    OutputError,
    StateError,
    StorageError,
    TidelogError,
    UsageError,
)
from tidelog.eventlog.log_files import LOG_FILE
from tidelog.eventlog.storage import storage_at
from tidelog.kinds.adapters import OUTPUT_KINDS
from tidelog.model.option_values import is_url
from tidelog.model.patterns import matches, similar_table, unmatched_text
from tidelog.model.schema import TableName, TableSchema
from tidelog.model.units import and_more, format_bytes, printable
from tidelog.outputs.base.sections import ExecutorSection, OutputSection
from tidelog.ports import (
    Catalogue,
    GrantingOutputKind,
    NamingOutputKind,
    ProbedOutputKind,
    SourceId,
    TableShape,
    TargetTable,
)
from tidelog.results import CheckFinding
from tidelog.sources.findings import Finding, fix_script
from tidelog.state.opening import ReadOnlyStateStore, state_path
from tidelog.system.maven import cache_directory
from tidelog.system.private_files import free_bytes, obstacle_to_files, readable_by_others, users_of


def check_names(config: Config, schemas: Sequence[TableSchema]) -> Iterator[CheckFinding]:
    """Yield a warning for each table that an output would leave out."""
    for output in config.outputs:
        kind = OUTPUT_KINDS.get(output.kind)
        if not isinstance(kind, NamingOutputKind):
            continue
        try:
            for text in kind.refused_names(output, list(_delivered_tables(output, schemas))):
                message, _, fix = text.rpartition(". ")
                message = f"a table would be left out: {message}"
                yield CheckFinding(f"output {output.name}", "warning", message, fix)
        except (TidelogError, ModuleNotFoundError):
            continue  # the checks of Spark and of the destination report it


_OF_KEYLESS = {
    "append": ("appends its changes", "ok"),
    "skip": ("leaves it out, until it has a key", "ok"),
    "fail": ("stops, as its option keyless says", "error"),
}


def check_keyless(config: Config, schemas: Sequence[TableSchema]) -> Iterator[CheckFinding]:
    """Yield, for each table without a key, what the outputs that need one do with it."""
    for schema in schemas:
        if schema.match_key:
            continue
        for output in config.outputs:
            policy = output.keyless_of(schema.table)
            if policy is None or not matches(output.tables, schema.table):
                continue
            text, level = _OF_KEYLESS[policy]
            message, fix = f"{schema.table} has no key: the output {text}", ""
            if level == "error":
                fix = f"give {schema.table} a key, or set keyless to another value"
            yield CheckFinding(f"output {output.name}", level, message, fix)


def _schemas(config: Config, catalogue: Catalogue) -> Iterator[TableSchema]:
    try:
        tables = catalogue.tables(config.source.tables)
        shapes = catalogue.shapes(tables)
    except TidelogError:
        return  # the check of the source reports it, as it does an unsupported table
    found = (shapes.get(table) for table in tables)
    yield from (shape.schema for shape in found if isinstance(shape, TableShape))


def _delivered_tables(
    output: OutputSection, schemas: Sequence[TableSchema]
) -> Iterator[TargetTable]:
    from tidelog.outputs.base.sections import SteppedSection
    from tidelog.outputs.delivery_settings import transform_steps
    from tidelog.spark.transforms import named_table

    steps = transform_steps(output) if isinstance(output, SteppedSection) else ()
    for schema in schemas:
        if matches(output.tables, schema.table):
            target = named_table(schema, steps, SourceId("", "", ""))
            if target is not None:
                yield target


LEAST_FREE_BYTES = 1 << 30


def check(config: Config) -> list[CheckFinding]:
    """Run the checks of `tidelog check`; changes nothing."""
    return _all_findings(config, source_kind(config).check())


def check_with_script(config: Config) -> tuple[list[CheckFinding], list[str]]:
    """Return the findings of `check` and the script of `check_script`; checks the source once."""
    found = source_kind(config).check()
    return _all_findings(config, found), list(fix_script([*found, *output_grants(config)]))


def _all_findings(config: Config, of_source: Sequence[Finding]) -> list[CheckFinding]:
    findings = [
        CheckFinding(finding.name, finding.level, finding.message, finding.remedy)
        for finding in of_source
    ]
    on_store = is_url(config.log.path)
    findings += [_check_store(config)] if on_store else []
    paths = list(check_paths(config))
    findings += paths
    if ("connection", "error") not in {(each.check, each.level) for each in findings}:
        findings += _check_patterns(config)
    findings += check_modes(config)
    if config.outputs:
        findings += _check_spark(config)
    found = {finding.check for finding in paths}  # then a probe says less
    findings += [each for each in _check_outputs(config) if each.check not in found]
    findings += _check_kafka(config)
    return [*findings, *check_authorities(config), *_check_locations(config)]


def check_script(config: Config) -> tuple[list[str], bool]:
    """Return the SQL that `check` prints as lines of one script, and whether there is no error.

    Only the source, the rights of outputs and excluded columns are checked.
    """
    findings = source_kind(config).check()
    lines = list(fix_script([*findings, *output_grants(config)]))
    wrong = [
        each for each in _check_patterns(config) if (each.check, each.level) == ("columns", "error")
    ]
    lines += [f"-- {printable(each.message)}: {printable(each.fix)}" for each in wrong]
    return lines, not wrong and all(finding.level != "error" for finding in findings)


def output_grants(config: Config) -> Iterator[Finding]:
    """Yield the rights that outputs lack, with their GRANTs, where the destinations answer."""
    granting = [
        (output, kind)
        for output in config.outputs
        if isinstance(kind := OUTPUT_KINDS.get(output.kind), GrantingOutputKind)
    ]
    if not granting:
        return
    schemas: list[TableSchema] = []
    with suppress(TidelogError), closing(source_kind(config).catalogue()) as catalogue:
        schemas += _schemas(config, catalogue)
    for output, kind in granting:
        with suppress(TidelogError, ModuleNotFoundError):
            text = "its role may not create or write its tables"
            tables = list(_delivered_tables(output, schemas))
            for owner, statement in kind.missing_grants(output, tables):
                role = f"{owner} (output {output.name})"
                yield Finding(f"output {output.name}", "warning", text, statement, role)


def _check_store(config: Config) -> CheckFinding:
    """Check that the event log's object store can be listed and read."""
    location = event_log_path(config)
    try:
        storage = storage_at(location)
        storage.names()
        there = storage.tag(LOG_FILE) is not None
    except (StorageError, UsageError) as error:
        message, _, fix = str(error).partition(". ")
        return CheckFinding("log", "error", message, fix or message)
    contents = "holds the event log" if there else "can be listed; it holds no event log yet"
    return CheckFinding("log", "ok", f"{location} {contents}")


def check_paths(config: Config) -> Iterator[CheckFinding]:
    """Check that files can be created where capture and the pipeline write on this host.

    Capture can't start without log and state, which are errors.
    """
    for name, option, path, level in _local_paths(config):
        why = obstacle_to_files(path)
        free = None if why else free_bytes(path)
        if free == 0:
            why = "its file system has no space left"
        if why:
            message = f"no file can be created at {path}: {why}"
            fix = f"name another directory ({option}), or let this user write there"
            yield CheckFinding(name, level, message, fix)
        elif name == "log" and free is not None:
            enough = free >= LEAST_FREE_BYTES
            yield CheckFinding(
                "disk",
                "ok" if enough else "warning",
                f"{format_bytes(free)} are free for the event log at {path}",
                "" if enough else "make room, or set log.retention",
            )


def _local_paths(config: Config) -> Iterator[tuple[str, str, Path, str]]:
    """Yield the directories of this host that are written to.

    Each has the check's name, its option, the directory, and the level of a finding.
    """
    for option, path in local_directories(config).items():
        yield option.partition(".")[0], option, path, "error"
    if not config.outputs:
        return
    for output in config.outputs:
        for option, location in (
            ("path", getattr(output, "path", None)),
            ("dead_letter.path", getattr(getattr(output, "dead_letter", None), "path", None)),
        ):
            if isinstance(location, (str, Path)) and not is_url(str(location)):
                yield f"output {output.name}", f"its {option}", Path(location), "warning"
    if not is_url(str(config.pipeline.checkpoint)):
        path = Path(config.pipeline.checkpoint)
        yield "checkpoint", "pipeline.checkpoint", path, "warning"
    if any(output.spark_jars for output in config.outputs):
        yield "jars", "TIDELOG_JARS", cache_directory(), "warning"


def check_modes(config: Config) -> Iterator[CheckFinding]:
    """Check that other users of this machine can't read rows and state."""
    locations = {"state": state_path(config.state.location)}
    if not is_url(config.log.path):
        locations["log"] = Path(config.log.path)
    if config.control.notification_file is not None:
        locations["notifications"] = Path(config.control.notification_file)
    for output in config.outputs:
        letters = output.dead_letter if isinstance(output, ExecutorSection) else None
        if letters is not None and not is_url(letters.path):
            locations[f"dead letters of {output.name}"] = Path(letters.path)
    for name, location in sorted(locations.items()):
        if location is None:
            continue
        try:
            users, readable = users_of(location), readable_by_others(location)
        except OSError:
            continue  # it does not exist yet, or can't be read by us: capture reports it
        files = f"-R {quote(str(location))}" if location.is_dir() else f"{quote(str(location))}*"
        yield CheckFinding(
            f"{name} files",
            "warning" if readable else "ok",
            f"{location} is {'not ' if readable else ''}for its {users} alone",
            f"chmod {'o-rwx' if 'group' in users else 'go-rwx'} {files}" if readable else "",
        )


def _check_patterns(config: Config) -> Iterator[CheckFinding]:
    """Check that each pattern matches a table, in the source and in each output, and that the
    outputs can have the names.
    """
    catalogue = source_kind(config).catalogue()
    try:
        captured = catalogue.tables(config.source.tables)
        unseen = _unseen_tables(config, catalogue, captured)
        unused = list(unmatched_patterns(config, catalogue))
        every = catalogue.tables(["*"]) if unused else []
        similar = {
            pattern: similar_table(
                pattern, every if location == SOURCE_TABLES else captured, catalogue.partitioned
            )
            for location, pattern in unused
        }
        columns = catalogue.columns(captured) if config.source.exclusions else {}
        schemas = list(_schemas(config, catalogue)) if config.outputs else []
        found = [*check_names(config, schemas), *check_keyless(config, schemas)]
    except TidelogError:
        return  # the check of the source reports it
    finally:
        catalogue.close()
    for grant, hidden in groupby(unseen, unseen.__getitem__):
        first, *others = hidden
        were, them = ("were", "them") if others else ("was", "it")
        who = f"{first}{and_more(len(others), 'table')} {were}"
        text = f"{who} captured, and the account may no longer see {them}"
        yield CheckFinding("tables", "error", text, grant)
    if not captured:
        return  # already reported
    for location, pattern in () if unseen else unused:  # else its tables may be among those
        text = unmatched_text(pattern, "table" if location == SOURCE_TABLES else "captured table")
        fix = similar[pattern]
        if not fix or fix.endswith("?"):
            fix = f"{fix} Correct it, or" if fix else "correct it, or"
            fix += " leave it if its tables are yet to be created"
        yield CheckFinding("tables", "warning", f"{location}: {text}, others do", fix)
    for text, named in unmatched_exclusions(config, columns).values():
        level, fix = "warning", "correct it, or leave it if its columns are yet to be created"
        if named:
            level, fix = "error", f"{WRONG_EXCLUSION[0].lower()}{WRONG_EXCLUSION[1:]}"
        yield CheckFinding("columns", level, text, fix)
    yield from found


def _unseen_tables(
    config: Config, catalogue: Catalogue, captured: Sequence[TableName]
) -> dict[TableName, str]:
    """Return the tables that capture knows and the account may no longer see, with the GRANT."""
    with suppress(StateError), closing(ReadOnlyStateStore(config.state.location)) as state:
        shapes = state.get(SHAPES_KEY)
        known = {} if shapes is None else shapes.value
        lost = sorted({TableName.parse(name) for name in known} - set(captured))
        return catalogue.unseen(lost, config.source.tables, state)
    return {}


def _check_spark(config: Config) -> Iterator[CheckFinding]:
    """Check that the pipeline with its outputs can also run here.

    A host that only captures needs no Spark.
    """
    level = "ok"
    try:
        check_installed(config.outputs)
        check_spark(config)
        refused = "" if remote_of(config) is None else check_remote_server(config)
    except OutputError as error:
        level, message = "warning", str(error)
    except UsageError as error:
        level, message = "warning", f"on this host only `tidelog capture` can run. {error}"
    else:
        message = f"{installed_versions(config)} fit the outputs"
        if refused:
            level, message = "warning", refused
        if doubts := "; ".join(untested_versions()):
            level, message = "warning", f"it may not run: {doubts}"
    yield CheckFinding("spark", level, message)


def _check_outputs(config: Config) -> Iterator[CheckFinding]:
    """Check that this host can reach each destination.

    Without them capture runs on, and the pipeline waits.
    """
    for output in config.outputs:
        kind = OUTPUT_KINDS.get(output.kind)
        if not isinstance(kind, ProbedOutputKind):
            continue
        level = "ok"
        try:
            message = kind.probe(output)
        except TidelogError as error:
            level = "error" if isinstance(error, UsageError) else "warning"
            message = " ".join(str(error).split())
        except ModuleNotFoundError:
            continue  # reported with Spark, with the command that fixes it
        except Exception as error:  # noqa: BLE001 - the output is a plugin: check the others
            level, message = "warning", f"can't be checked ({type(error).__name__})"
        if message is not None:
            yield CheckFinding(f"output {output.name}", level, message)


def _check_kafka(config: Config) -> Iterator[CheckFinding]:
    """Check that the topics of signals and notifications exist. Capture runs without them."""
    try:
        check_channels(config)
        locations = [
            ("signal_kafka", signal_location(config)),
            ("notification_kafka", notification_location(config)),
        ]
    except UsageError as error:
        yield CheckFinding("channels", "error", str(error))
        return
    for name, location in locations:
        if location is None:
            continue
        from tidelog.control.channels.kafka import (
            ONE_PARTITION,
            ChannelError,
            several_partitions,
            topic_facts,
        )

        check_name = f"control.{name}"
        try:
            partitions = topic_facts(location).partitions
        except ChannelError as error:
            message = f"topic {location.topic}: {error.reason}"
            yield CheckFinding(check_name, "warning", message, error.remedy)
        else:
            if partitions == 1 or name != "signal_kafka":
                yield CheckFinding(check_name, "ok", f"topic {location.topic} exists")
            else:
                message = f"topic {location.topic}: {several_partitions(partitions)}"
                yield CheckFinding(check_name, "warning", message, ONE_PARTITION)


def _check_locations(config: Config) -> Iterator[CheckFinding]:
    """Check that no two outputs write to the same place, and that none has moved."""
    found: dict[str, ConfigError] = {}
    try:
        found = colliding_outputs(config)
        found = misplaced_outputs(config) or found
    except ConfigError as error:  # a wrong route
        found = {"": error}
    except TidelogError:
        pass  # another check reports that the log does not answer
    for each in found.values():
        message, _, fix = str(each).partition(". ")
        yield CheckFinding("outputs", "error", message, fix)


def check_authorities(config: Config) -> Iterator[CheckFinding]:
    """Check that each output's ``ca_file`` has certificates; one finding for each."""
    for output in config.outputs:
        ca_file = getattr(output, "ca_file", None)
        if ca_file is None:
            continue
        check_name = f"output {output.name}"
        try:
            ssl.create_default_context(cafile=ca_file)
            yield CheckFinding(check_name, "ok", f"ca_file {ca_file} holds certificates")
        except OSError as error:
            why = "holds no certificate" if isinstance(error, ssl.SSLError) else error.strerror
            fix = "name a file of certificates of authorities, PEM"
            yield CheckFinding(check_name, "error", f"ca_file {ca_file}: {why}", fix)
