"""Decoding at placeholders, with an incremental state."""
