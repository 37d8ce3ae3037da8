"""Changes that the catalogue shows and the log does not: new, altered, renamed, unsupported
tables.
"""
