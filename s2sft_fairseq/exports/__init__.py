"""Models for other engines than this package: folders that run without it, and what they are compared with."""
