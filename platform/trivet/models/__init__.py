"""Models as data: specs, the files they come from, one decoder, and the fallback to transformers."""
