"""Extractive question answering: from passages to windows that a model reads, and from its logits to answers."""
