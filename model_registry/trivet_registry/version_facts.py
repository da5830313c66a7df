"""What a version tells of its files beside their sizes: the architecture's own sizes, what it can do."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from trivet.errors import ModelFilesError
from trivet.models.pooling_config import model_pooling

if TYPE_CHECKING:
    from trivet.models.description import ModelFiles


def spec_summary(files: ModelFiles) -> dict[str, Any]:
    """Sizes that say how large and of what kind a model is; without a spec only its number of weights."""
    count = sum(math.prod(tensor.shape) for tensor in files.weights.tensors)
    summary: dict[str, Any] = {"num_parameters": count}
    if files.spec is not None:
        attention = files.spec.kinds[0].attention
        summary |= {
            "num_layers": files.spec.num_layers,
            "hidden_size": files.spec.hidden_size,
            "vocab_size": files.spec.vocab_size,
            "num_heads": attention.num_heads,
            "num_kv_heads": attention.num_kv_heads,
            "head_dim": attention.head_dim,
        }
    return summary


def abilities(files: ModelFiles) -> list[str]:
    """By what its files say: "embed" alone where they say how a text becomes one vector."""
    try:
        pools = model_pooling(files) is not None
    except ModelFilesError:  # in a way that we do not carry out: it embeds all the same
        pools = True
    if pools:
        return ["embed"]
    template = files.chat_template
    chats = ["chat"] if template else []
    return ["generate", *chats, *(["tools"] if template and "tools" in template else [])]
