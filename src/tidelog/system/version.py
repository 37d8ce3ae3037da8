"""The release, for the package's metadata and for quick imports."""

__version__ = "0.2.0"
