"""Values of the domain: no I/O, no clock, no database's name."""
