"""The version of the library, as in pyproject.toml."""

__version__ = "0.1.0"
