"""Dictionaries, text files, labels and data sets."""
