"""The backend's own options, `options.NAME` in a deployment's settings, and which models they fit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from trivet.models.spec import Attention
from trivet.runners.supported import chosen_options

# What CANN's attention accepts in the layout of ragged batches; 256 is refused with code 561002 (vllm-ascend
# PR #9632), and CANN 8.3 and older refused 64 and 128 as well (vllm-ascend #8045, #4020).
FUSED_HEAD_DIMS = (64, 128, 192)
MAX_HEADS = 256
MAX_GROUP = 64  # query heads of a KV head
MAX_KV_ROW = 65_535  # elements of a token's K over all KV heads

ATTENTION = ("auto", "fused", "gather")
WEIGHTS = ("plain", "w8a16", "w8a8", "w4a16")
GRAPHS = ("off", "on")
SELF_TEST = ("on", "off")


@dataclass(frozen=True, slots=True)
class AscendOptions:
    """What an operator may choose."""

    attention: str = "auto"  # fused: also head sizes outside FUSED_HEAD_DIMS; gather: never the fused op
    weights: str = "plain"
    graphs: str = "off"  # until somebody has proved them on a device
    self_test: str = "on"

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> AscendOptions:
        """Raises: Unsupported naming the option and its values."""
        known = {"attention": ATTENTION, "weights": WEIGHTS, "graphs": GRAPHS, "self_test": SELF_TEST}
        return cls(**chosen_options(options, known, "Ascend"))

    def why_gathered(self, spec: Attention, dtype: str, max_model_len: int) -> str | None:
        """Why attention of this kind runs as gather and plain products; None: the fused operation does."""
        if self.attention == "gather":
            return "attention=gather was asked for"
        if dtype == "f32":
            return "the fused operation takes float16 and bfloat16 only"
        if spec.window is not None and spec.window < max_model_len:
            # For a query of one token the op ignores its window (torch-npu's own document).
            return f"a window of {spec.window} tokens is shorter than max_model_len {max_model_len}"
        if spec.alibi or spec.soft_cap is not None:
            return "ALiBi" if spec.alibi else "a soft cap of the scores"
        group, row = spec.num_heads // spec.num_kv_heads, spec.num_kv_heads * spec.head_dim
        if spec.num_heads > MAX_HEADS or group > MAX_GROUP or row > MAX_KV_ROW:
            return f"{spec.num_heads} query heads over {spec.num_kv_heads} KV heads of {spec.head_dim}"
        allowed = spec.head_dim % 16 == 0 and spec.head_dim <= 512
        if spec.head_dim not in FUSED_HEAD_DIMS and not (self.attention == "fused" and allowed):
            return f"head size {spec.head_dim} is none of {', '.join(map(str, FUSED_HEAD_DIMS))}"
        return None
