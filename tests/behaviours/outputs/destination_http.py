"""An API that takes flat events, and minds the keys of requests."""

from __future__ import annotations

from tests.behaviours.outputs import api
from tests.behaviours.outputs.destinations import Context, Destination


def destination(context: Context) -> Destination:
    return api.destination(context)
