"""vLLM's place of `LoRARequest`, so that scripts written for it run with the import changed."""
