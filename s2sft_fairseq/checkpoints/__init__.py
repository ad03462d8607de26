"""Checkpoints: safe loading, and one loader of pretrained weights per source format."""
