"""Calls of functions in what a model writes: one parser a format, chosen from the model's files."""
