"""The operator's web page: it shows the overview, and sends commands as any other client."""
