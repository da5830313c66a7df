"""As `vllm.lora.request`."""

from trivet.adapters import LoRARequest

__all__ = ["LoRARequest"]
