"""Dictionaries, tokenizers, text files and data sets."""
