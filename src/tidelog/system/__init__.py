"""Access to the machine: private files, processes, jars, and failpoints for tests."""
