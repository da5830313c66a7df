"""Anthropic's messages API, translated to chats."""
