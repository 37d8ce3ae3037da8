"""``source.databases``: one configuration for each of several databases of a server."""

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
    """The databases of ``source.databases``; empty: the configuration has one database."""
    return list(getattr(config.source, "databases", ()))


def of_database(config: Config, database: str) -> Config:
    """What ``config`` says of one of its databases: a configuration like any other.

    Raises:
        ConfigError: it is none of ``source.databases``.
    """
    known = databases_of(config)
    if database not in known:
        told = f"they are {', '.join(known)}" if known else "there are none"
        raise ConfigError(f"{database!r} is not in source.databases: {told}")
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
        # Series of two databases that are called alike would be one.
        otlp = otlp.model_copy(update={"service_name": f"{otlp.service_name}_{label}"})
    control = config.control.model_copy(
        update={
            "notification_file": file and file.with_name(_named(file.name, label)),
            "signal_file": signals and signals.with_name(_named(signals.name, label)),
            "signal_kafka": kafka,
            "otlp": otlp,
        }
    )
    log = config.log.model_copy(update={"path": f"{config.log.path.rstrip('/')}/{label}"})
    state = config.state.model_copy(update={"url": _state_url(config.state.url, label)})
    changed = {"source": own_source, "control": control, "log": log, "state": state}
    return config.model_copy(update=changed)


def of_each_database(config: Config) -> dict[str, Config]:
    """By the database's name; of a configuration of one database: itself, under an empty name."""
    names = databases_of(config)
    return {name: of_database(config, name) for name in names} if names else {"": config}


def of_one_database(config: Config) -> Config:
    """Returns ``config``. Raises ConfigError if it has several databases."""
    names = databases_of(config)
    if names:
        raise ConfigError(
            f"the configuration is of the databases {', '.join(names)}: this works on one of them. "
            "On the command line name it before the command, `tidelog --database "
            f"{names[0]} …`; in a program take `tidelog.of_database`"
        )
    return config


def label_of(database: str) -> str:
    """What stands for it in names of slots, directories and files; no two have one."""
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
        return f"{url} dbname='{escaped}'"  # libpq takes the last one
    parts = urlsplit(url)
    options = [(k, v) for k, v in parse_qsl(parts.query, keep_blank_values=True) if k != "dbname"]
    query = f"?{urlencode(options, quote_via=quote)}" if options else ""
    # By hand: urlunsplit leaves the slashes out before an empty host.
    return f"{parts.scheme}://{parts.netloc}/{quote(database, safe='')}{query}"


def _named(file: str, label: str) -> str:
    stem, dot, suffix = file.rpartition(".")
    return f"{stem}-{label}.{suffix}" if dot and stem else f"{file}-{label}"


def _state_url(url: StateUrl, label: str) -> StateUrl:
    """``…/state.db`` → ``…/state-shop.db``; PostgreSQL: a part of its own of the one table, which
    stays in the schema that is never captured; else ``…/path/shop``, as the event log's path.
    """
    place, asked, query = url.reveal().partition("?")
    if place.startswith("postgresql:"):
        return url.with_options({"part": label})
    if place.startswith("sqlite:"):
        folder, _, file = place.rpartition("/")
        return StateUrl(f"{folder}/{_named(file, label)}{asked}{query}")
    return StateUrl(f"{place.rstrip('/')}/{label}{asked}{query}")
