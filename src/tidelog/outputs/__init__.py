"""Destinations of the pipeline: adapters of `tidelog.ports.Output`.

Each kind has a folder. `config.py` in it has the options and how the output is opened, the other
modules what driver and tasks do. What kinds share is in `base`; begin with `base/output.py`.
Tasks of most kinds write to the destination (`base/executor_output.py`). Tasks of a lake write
files, and the driver commits them (`lake/output.py`).
"""

from tidelog.outputs.base.writer import Writer as Writer
