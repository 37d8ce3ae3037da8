"""What a statement of the log does to tables: enough of SQL to tell, and no more.

The log holds DDL as text. Read here are the tables that a statement names, whether their columns
may be others afterwards, and whether rows changed for which there are no row events. What a
statement does beyond that (defaults, types) is the catalogue's to say. In doubt a statement counts
as doing more.
"""
