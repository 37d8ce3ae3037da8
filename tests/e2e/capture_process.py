"""`tidelog capture CONFIG` with housekeeping so frequent that a test of seconds sees all of it.

``TIDELOG_ORACLE_MUTATION`` names a way to break it first (`tests.e2e.oracle_mutations`).
"""

from __future__ import annotations

import os
import sys

from tidelog.capture import session
from tidelog.cli import main

session.STATUS_EVERY_S = 0.2
session.LOOK_EVERY_S = 0.4
session.MAINTAIN_EVERY_S = 0.7
MUTATION_VARIABLE = "TIDELOG_ORACLE_MUTATION"

if __name__ == "__main__":
    if os.environ.get(MUTATION_VARIABLE):
        from tests.e2e import oracle_mutations

        oracle_mutations.apply(os.environ[MUTATION_VARIABLE])
    sys.argv = ["tidelog", "--log-level", "info", "capture", sys.argv[1]]
    main()
