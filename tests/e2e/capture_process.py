"""`tidelog capture CONFIG` with housekeeping so frequent that a test of seconds sees all of it."""

from __future__ import annotations

import sys

from tidelog.capture import session
from tidelog.cli import main

session.STATUS_EVERY_S = 0.2
session.LOOK_EVERY_S = 0.4
session.MAINTAIN_EVERY_S = 0.7

if __name__ == "__main__":
    sys.argv = ["tidelog", "--log-level", "info", "capture", sys.argv[1]]
    main()
