"""Documents in OpenSearch, as a search of the alias finds them."""

from __future__ import annotations

from tests.behaviours.outputs.destinations import Context, Destination
from tests.behaviours.outputs.search_index import search_destination


def destination(context: Context) -> Destination:
    return search_destination(context)
