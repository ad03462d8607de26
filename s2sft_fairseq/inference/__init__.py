"""Generation: from sources to hypotheses, and from a file of raw text to a file of generated text."""
