"""Export models for other engines, to folders that run without this package, and compare them with the original."""
