"""Text in and out over FastDecode's token-level API."""

__version__ = "0.1.0"
