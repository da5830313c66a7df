"""onnxruntime-genai in process: `python -m trivet_bars.peers.onnxruntime_genai MODEL THREADS`.

MODEL is a folder that its model builder made. It batches statically: the requests begin and end together,
which is the best case of a batch, and nothing is shared between requests.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence

import numpy as np
import onnxruntime_genai
from trivet_bars.orders import Arrivals, Order, take_orders


class OnnxRuntime:
    """One model, and a generator for each order."""

    def __init__(self, model: str, threads: int) -> None:
        config = onnxruntime_genai.Config(model)
        options = {"intra_op_num_threads": threads, "inter_op_num_threads": 1}
        config.overlay(json.dumps({"model": {"decoder": {"session_options": options}}}))
        self._model = onnxruntime_genai.Model(config)

    def generate(self, order: Order) -> Sequence[Arrivals]:
        """As `orders.InProcess`. The prompts have one length."""
        length = len(order.prompts[0]) + order.output_tokens
        search: dict[str, object] = {
            "batch_size": len(order.prompts),
            "max_length": length,
            "min_length": length,
            "do_sample": order.temperature > 0,
        }
        if order.temperature > 0:
            search |= {"temperature": order.temperature, "top_p": order.top_p}
        params = onnxruntime_genai.GeneratorParams(self._model)
        params.set_search_options(**search)
        generator = onnxruntime_genai.Generator(self._model, params)
        generator.append_tokens(np.array(order.prompts, np.int32))
        requests = [Arrivals() for _ in order.prompts]
        while not generator.is_done():
            generator.generate_next_token()
            now_s = time.perf_counter()
            for arrivals in requests:
                arrivals.add(now_s)
        return requests


if __name__ == "__main__":
    model, threads = sys.argv[1], int(sys.argv[2])
    take_orders(
        lambda: OnnxRuntime(model, threads),
        ("onnxruntime-genai", "onnxruntime"),
        {"threads": threads, "batching": "static"},
    )
