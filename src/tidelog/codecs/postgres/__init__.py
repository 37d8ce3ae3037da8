"""pgoutput and PostgreSQL's texts."""
