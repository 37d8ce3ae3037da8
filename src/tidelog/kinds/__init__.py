"""Registries of adapters by name, and the building blocks of configuration sections."""
