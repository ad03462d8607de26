"""Layers that all encoder-only systems share."""
