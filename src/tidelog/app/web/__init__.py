"""The operator's web page: it shows the overview, and gives commands as any other client does."""
