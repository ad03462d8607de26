"""Training objectives as pure functions: token ids in, columns of the packed format out."""
