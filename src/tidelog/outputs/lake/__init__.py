"""Outputs into lakes: Delta and Iceberg tables.

To *settle* changes means to decide which rows in the files of a table they replace, and to write
the new rows into new files. `output` plans and commits, `jobs` has the Spark jobs, `settling` what
their tasks do, `data_files` the reading and writing of files, `table` what the driver does with one
table. `delta` and `iceberg` have what differs.
"""
