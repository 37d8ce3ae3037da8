"""Delta tables on S3."""

from __future__ import annotations

import functools
import secrets

from tests.behaviours.outputs import destination_delta
from tests.behaviours.outputs.destinations import Context, Destination
from tests.support.s3 import S3Server


@functools.cache
def s3() -> S3Server:
    made = S3Server()
    made.start()
    return made


def destination(context: Context) -> Destination:
    prefix = secrets.token_hex(4)
    url, files = s3().url(prefix), str(s3().files(prefix))
    return destination_delta.destination(context, url, files, "ascii")
