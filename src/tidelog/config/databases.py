"""Derives a configuration for each database of ``source.databases``."""

from __future__ import annotations

import hashlib
import re
from typing import Any, Final
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from tidelog.config.models import Config
from tidelog.errors import ConfigError
from tidelog.kinds.sections import SecretUrl, StateUrl

_PLAIN: Final = re.compile(r"[a-z0-9_]{1,30}")
_LONGEST_SLOT: Final = 63


def databases_of(config: Config) -> list[str]:
    """Return the databases of ``source.databases``; empty: the configuration has one database."""
    return list(getattr(config.source, "databases", ()))


def of_database(config: Config, database: str) -> Config:
    """Return the configuration of one of the databases of ``config``.

    Raises:
        ConfigError: it is not one of ``source.databases``.
    """
    names = databases_of(config)
    if database not in names:
        known_names = f"they are {', '.join(names)}" if names else "there are none"
        raise ConfigError(f"{database!r} is not in source.databases: {known_names}")
    source: Any = config.source
    label = label_of(database)
    slot = _slot(source.slot, label)
    own_source = source.model_copy(
        update={
            "databases": [],
            "url": SecretUrl(_url(source.url.reveal(), database)),
            "slot": slot,
        }
    )
    file = config.control.notification_file
    signals, kafka = config.control.signal_file, config.control.signal_kafka
    if kafka is not None and kafka.key is not None:
        kafka = kafka.model_copy(update={"key": f"{kafka.key}_{label}"})
    otlp = config.control.otlp
    if otlp is not None and otlp.service_name is not None:
        # Otherwise two databases of one name would share one series.
        otlp = otlp.model_copy(update={"service_name": f"{otlp.service_name}_{label}"})
    control = config.control.model_copy(
        update={
            "notification_file": file and file.with_name(_with_label(file.name, label)),
            "signal_file": signals and signals.with_name(_with_label(signals.name, label)),
            "signal_kafka": kafka,
            "otlp": otlp,
        }
    )
    log = config.log.model_copy(update={"path": f"{config.log.path.rstrip('/')}/{label}"})
    state = config.state.model_copy(update={"url": _state_url(config.state.url, label)})
    changed = {"source": own_source, "control": control, "log": log, "state": state}
    return config.model_copy(update=changed)


def of_each_database(config: Config) -> dict[str, Config]:
    """Return the configurations by database; with one database: itself, under an empty name."""
    names = databases_of(config)
    return {name: of_database(config, name) for name in names} if names else {"": config}


def of_one_database(config: Config) -> Config:
    """Return ``config``. Raises ConfigError if it has several databases."""
    names = databases_of(config)
    if names:
        raise ConfigError(
            f"the configuration is of the databases {', '.join(names)}: this works on one of them. "
            "On the command line name it before the command, `tidelog --database "
            f"{names[0]} …`; in a program take `tidelog.of_database`"
        )
    return config


def label_of(database: str) -> str:
    """Return the database's label in names of slots, directories and files; each has its own."""
    if _PLAIN.fullmatch(database):
        return database
    plain = re.sub(r"[^a-z0-9_]", "_", database.lower())[:20]
    return f"{plain}_{hashlib.sha256(database.encode()).hexdigest()[:8]}"


def _slot(slot: str, label: str) -> str:
    name = f"{slot}_{label}"
    if len(name) <= _LONGEST_SLOT:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    return f"{name[: _LONGEST_SLOT - 9]}_{digest}"


def _url(url: str, database: str) -> str:
    if "://" not in url:
        escaped = database.replace("\\", "\\\\").replace("'", "\\'")
        return f"{url} dbname='{escaped}'"  # libpq uses the last one
    parts = urlsplit(url)
    options = [(k, v) for k, v in parse_qsl(parts.query, keep_blank_values=True) if k != "dbname"]
    query = f"?{urlencode(options, quote_via=quote)}" if options else ""
    # By hand: urlunsplit omits the slashes before an empty host.
    return f"{parts.scheme}://{parts.netloc}/{quote(database, safe='')}{query}"


def _with_label(file: str, label: str) -> str:
    stem, dot, suffix = file.rpartition(".")
    return f"{stem}-{label}.{suffix}" if dot and stem else f"{file}-{label}"


def _state_url(url: StateUrl, label: str) -> StateUrl:
    """Return the database's state URL: ``…/state.db`` → ``…/state-shop.db``.

    PostgreSQL: a part of the one table, which stays in the schema that is never captured; else
    ``…/path/shop``, as the event log's path.
    """
    place, asked, query = url.reveal().partition("?")
    if place.startswith("postgresql:"):
        return url.with_options({"part": label})
    if place.startswith("sqlite:"):
        folder, _, file = place.rpartition("/")
        return StateUrl(f"{folder}/{_with_label(file, label)}{asked}{query}")
    return StateUrl(f"{place.rstrip('/')}/{label}{asked}{query}")
