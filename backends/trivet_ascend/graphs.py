"""Captures a decode as an ACL graph (`trivet_ascend.decode_graphs` has the rest).

Attention takes its lengths as host integers, which a capture bakes in. torch-npu renews them by name before
a replay (`update`); a name it does not know would be ignored, so the one used here is the operation's own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from trivet_ascend.decode_graphs import DecodeInputs
from trivet_ascend.paged_kv import StepView

Forward = Callable[[Tensor, Tensor, StepView], Tensor]
LENGTHS = "actual_seq_lengths_kv"


@dataclass(frozen=True, slots=True)
class CapturedDecode:
    """As `decode_graphs.CapturedDecode`."""

    graph: Any
    token_ids: Tensor
    positions: Tensor
    view: StepView
    hidden: Tensor

    def replay(self, inputs: DecodeInputs) -> Tensor:
        """As the protocol."""
        with torch.inference_mode():
            for target, source in (
                (self.token_ids, inputs.token_ids),
                (self.positions, inputs.positions),
                (self.view.slots, inputs.slots),
                (self.view.block_table, inputs.block_table),
            ):
                target.copy_(torch.from_numpy(source))
            self.graph.update(cpu_update_input=[{LENGTHS: inputs.seq_lens.tolist()}])
            self.graph.replay()
            return self.hidden


class AclGraphs:
    """As `decode_graphs.CapturesDecodes`."""

    def __init__(self, forward: Forward, num_columns: int, device: torch.device) -> None:
        """`num_columns` of a block table."""
        self._forward, self._num_columns, self._device = forward, num_columns, device

    def capture(self, size: int) -> CapturedDecode:
        """As the protocol."""
        npu: Any = torch.npu  # type: ignore[attr-defined]  # torch-npu puts it there
        device = self._device
        token_ids, positions = (torch.zeros(size, dtype=torch.int64, device=device) for _ in range(2))
        view = StepView(
            slots=torch.arange(size, dtype=torch.int32, device=device),
            block_table=torch.zeros((size, self._num_columns), dtype=torch.int32, device=device),
            query_ends=list(range(1, size + 1)),
            seq_lens=[1] * size,
        )
        with torch.inference_mode():
            self._forward(token_ids, positions, view)  # what is made once must not be made in the graph
            graph = npu.NPUGraph()
            with npu.graph(graph, auto_dispatch_capture=True):
                hidden = self._forward(token_ids, positions, view)
        return CapturedDecode(graph, token_ids, positions, view, hidden)
