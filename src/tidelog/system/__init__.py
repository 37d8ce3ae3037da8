"""What a process asks of the machine: private files, jars, and failpoints for tests."""
