"""Xinference's API where it is not OpenAI's: launching and ending models, and registering files."""
