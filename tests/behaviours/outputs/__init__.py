"""What every output does, whatever its destination. A new output is done when it passes.

The recipe: write ``destination_<kind>.py`` here with ::

    def destination(context: Context) -> Destination:
        '''One destination of its own for a test; pytest.skip(…) where its server can't run.'''

It is found by its name; no list is to be edited. `destinations.Context` has the Spark session, the
event log and a directory; `destinations.Destination` says what the suite asks for:

- ``open(**delivery)`` makes a new output over the *same* destination and the same state store; what
  is given replaces fields of `tidelog.outputs.base.writer.Delivery`. (Delta has none; it ignores
  them.)
- ``rows(table)``: the rows that are live there, as dicts of the table's columns by key, without
  version. A destination that is a stream gives the newest message of each key
  (`destinations.newest`).
- ``traits``: what can't be asked of it. Leave it empty if you can.

Then ``pytest tests/behaviours/outputs -k <kind>``. That rows are written again after a replay is
not the suite's business; that no older state follows a newer one is.
"""
