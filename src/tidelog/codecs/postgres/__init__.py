"""Codecs of pgoutput and of PostgreSQL's texts."""
