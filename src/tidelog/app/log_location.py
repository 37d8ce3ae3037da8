"""Where a configuration's event log is."""

from __future__ import annotations

from tidelog.config import Config
from tidelog.eventlog.storage.opening import provide_options


def log_place(config: Config) -> str:
    """The event log's directory or URL; from now on this process can open it, and so can those that
    it starts.
    """
    options = config.log.storage_options
    provide_options(
        config.log.path, {name: value.get_secret_value() for name, value in options.items()}
    )
    return config.log.path
