"""Capture as a process runs it: its parts, its channels, and what it tells others."""
