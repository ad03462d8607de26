"""Checkpoints: safe loading, saving and averaging, model folders, and conversion of pretrained weights."""
