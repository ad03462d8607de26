"""Spans of whole words: count n-grams, choose those whose words belong together, and find them in targets."""
