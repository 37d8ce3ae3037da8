"""What the catalogue says beside the log: tables that are new, changed, renamed or refused."""
