"""Scores of generated text, comparable to the published ones. A signature tells how each score is computed."""
