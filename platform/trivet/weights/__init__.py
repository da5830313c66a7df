"""Weight files: our own readers of safetensors and GGUF, mapped tensors, quantised formats."""
