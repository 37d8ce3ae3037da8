"""Runs capture in a process: its parts, channels and notifications."""
