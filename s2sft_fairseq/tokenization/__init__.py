"""Raw text to symbols of a pretrained vocabulary and back, by the tokenizer files that a folder holds."""
