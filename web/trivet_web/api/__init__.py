"""The HTTP interfaces: OpenAI's under /v1, ours under /platform/v1, health and metrics."""
