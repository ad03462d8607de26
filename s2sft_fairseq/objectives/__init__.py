"""Training objectives as pure functions, from token ids to columns of the packed format."""
