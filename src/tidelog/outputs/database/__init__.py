"""Tables of relational databases, kept equal to the source's by versioned upserts.

What both kinds share is here; `postgres` and `mysql` hold what they differ in (`dialect.Dialect`).
"""
