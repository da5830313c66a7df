"""Compiles what the backend would launch on a GPU, with no GPU, and reads what came of it."""
