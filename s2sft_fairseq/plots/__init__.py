"""Pictures of what the package computes, from the code that computes it."""
