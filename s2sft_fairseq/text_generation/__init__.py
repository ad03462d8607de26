"""Generating from files of raw text to files."""
