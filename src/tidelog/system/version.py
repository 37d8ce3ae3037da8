"""The release: for the package's metadata and for what tells it, without loading anything."""

__version__ = "0.1.0"
