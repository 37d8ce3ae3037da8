"""Opens the storage at a location, a directory or an object store, and provides its options.

Options that may be secret (keys, tokens) are passed to other processes in the environment, under a
name that Spark treats as a secret's, and so appear in no plan, log line or checkpoint.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tidelog.eventlog.local_storage import LocalStorage
from tidelog.eventlog.storage_port import Storage
from tidelog.model.option_values import is_url
from tidelog.system.extras import check_installed

OPTIONS_VARIABLE: Final = "TIDELOG_LOG_STORAGE_SECRETS"
_providing = threading.Lock()


def storage_at(location: str | Path) -> Storage:
    """Return the storage at a directory or a URL such as ``s3://bucket/prefix``.

    Raises:
        MissingExtraError: if a URL needs the extra ``object-store``.
        UsageError: if an option or the URL is wrong.
    """
    if not is_url(location):
        return LocalStorage(location)
    # Checked first: of two threads that import a failing module, one may see half of it.
    check_installed("obstore")
    from tidelog.eventlog.object_storage import ObjectStorage

    url = str(location).rstrip("/")
    return ObjectStorage(url, options_of(url))


def provide_options(location: str | Path, options: Mapping[str, str]) -> None:
    """Set options of the object store at ``location`` and below, for this process and those that it
    starts from now on.

    Options that are not given here come from the store's own environment variables, such as
    ``AWS_*``.
    """
    if not options:
        return
    with _providing:
        known = _all_options()
        known[_location_key(location)] = dict(options)
        os.environ[OPTIONS_VARIABLE] = json.dumps(known)


def options_of(url: str) -> dict[str, str]:
    """The options that `provide_options` got for the location, or for the nearest one above it."""
    options = _all_options()
    url = _location_key(url)
    above = [place for place in options if f"{url}/".startswith(f"{place}/")]
    return options[max(above, key=len)] if above else {}


def _location_key(location: str | Path) -> str:
    """The location's key; ``s3a``, as Hadoop calls it, is ``s3``."""
    text = str(location).rstrip("/")
    return "s3" + text.removeprefix("s3a") if text.startswith("s3a://") else text


def _all_options() -> dict[str, dict[str, str]]:
    options: dict[str, dict[str, str]] = json.loads(os.environ.get(OPTIONS_VARIABLE, "{}"))
    return options
