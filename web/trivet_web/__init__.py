"""HTTP: the OpenAI-compatible API, the management API, health, metrics and the console."""
