"""The API of Text Generation Inference, translated to text completions."""
