"""`python -m tidelog`."""

from tidelog.cli import main

main()
