"""Models as the web process needs them: who sees which, their files, tokenizers and templates, pulls."""
