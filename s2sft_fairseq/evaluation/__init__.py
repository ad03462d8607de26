"""Scores of generated text that mean the same as the published ones, each with a signature of how it was computed."""
