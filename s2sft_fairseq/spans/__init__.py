"""Words and spans of words: counting n-grams of whole words, choosing those that belong together, and finding them."""
