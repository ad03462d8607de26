"""Extractive question answering: windows of passages for a model to read, and answers from the model's logits."""
