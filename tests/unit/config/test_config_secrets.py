"""Whatever a section holds as a secret is one where the file is explained, too."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

from tidelog.config import control, loading, models
from tidelog.config.source import SOURCES
from tidelog.kinds.adapters import OUTPUT_KINDS
from tidelog.kinds.sections import SecretUrl


def sections() -> Iterator[type[BaseModel]]:
    for module in (control, control, models, control, models, models):
        for value in vars(module).values():
            if isinstance(value, type) and issubclass(value, BaseModel):
                yield value
    yield from SOURCES.values()
    yield from (OUTPUT_KINDS.get(name).section for name in OUTPUT_KINDS.names)


def holds_secret(annotation: Any) -> bool:
    kinds = ("Secret", *(each.__name__ for each in SecretUrl.__subclasses__()))
    return any(kind in repr(annotation) for kind in kinds)


def test_no_value_of_a_secret_option_is_ever_shown() -> None:
    secret = {
        name
        for section in sections()
        for name, field in section.model_fields.items()
        if holds_secret(field.annotation) or holds_secret(field.metadata)
    }
    assert {"token", "schema_token", "metrics_token", "viewer_token"} <= secret
    assert {"url", "password", "remote"} <= secret
    assert secret <= loading.SECRET_OPTIONS
