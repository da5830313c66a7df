"""Text in and out of token ids: tokenizer, chat template, detokenizer, stop strings. No torch, no HTTP."""
