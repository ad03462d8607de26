"""From sources to hypotheses, and from a file of raw text to a file of what is generated."""
