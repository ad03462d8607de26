"""Convert raw text to symbols of a pretrained vocabulary and back, with the tokenizer files of a folder."""
