"""Ollama's API, translated to chats, completions and embeddings."""
