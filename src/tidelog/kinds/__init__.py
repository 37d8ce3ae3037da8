"""Kinds of adapters by name, and what their sections of the configuration are made of."""
