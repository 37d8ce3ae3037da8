"""Keeps tables of relational databases equal to the source's by versioned upserts.

Both kinds share everything here, except for `postgres` and `mysql`, which implement
`dialect.Dialect`.
"""
