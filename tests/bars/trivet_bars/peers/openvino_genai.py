"""OpenVINO GenAI's continuous batching: `python -m trivet_bars.peers.openvino_genai MODEL THREADS`.

MODEL is a folder that `optimum-cli export openvino` made. bf16 is the fastest precision that its CPU plugin
offers on cores with bf16 products; the weights stay as exported.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from itertools import count

import numpy as np
import openvino
import openvino_genai
from trivet_bars.orders import Arrivals, Order, take_orders

CACHE_GIB = 2
STEP_TOKENS = 1024
MAX_NUM_SEQS = 64
PRECISION = "bf16"


class OpenVino:
    """One pipeline with prefix caching and room for all requests of a load at once."""

    def __init__(self, model: str, threads: int) -> None:
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.cache_size = CACHE_GIB
        scheduler.max_num_seqs = MAX_NUM_SEQS
        scheduler.max_num_batched_tokens = STEP_TOKENS
        scheduler.dynamic_split_fuse = True
        scheduler.enable_prefix_caching = True
        properties = {
            "INFERENCE_PRECISION_HINT": PRECISION,
            "INFERENCE_NUM_THREADS": threads,
            "ENABLE_CPU_PINNING": True,
        }
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(model, scheduler, "CPU", properties)
        self._ids = count()

    def generate(self, order: Order) -> Sequence[Arrivals]:
        """As `orders.InProcess`."""
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens = config.min_new_tokens = order.output_tokens
        config.ignore_eos = True
        config.apply_chat_template = False
        config.do_sample = order.temperature > 0
        if config.do_sample:
            config.temperature, config.top_p = order.temperature, order.top_p
        requests = []
        for prompt in order.prompts:
            ids = openvino.Tensor(np.array([prompt], np.int64))
            requests.append((self._pipeline.add_request(next(self._ids), ids, config), Arrivals()))
        while self._pipeline.has_non_finished_requests():
            self._pipeline.step()
            now_s = time.perf_counter()
            for handle, arrivals in requests:
                if handle.can_read():
                    arrivals.add(now_s, sum(len(output.generated_ids) for output in handle.read().values()))
        return [arrivals for _, arrivals in requests]


if __name__ == "__main__":
    model, threads = sys.argv[1], int(sys.argv[2])
    settings = {
        "precision": PRECISION,
        "threads": threads,
        "cache_gib": CACHE_GIB,
        "max_num_seqs": MAX_NUM_SEQS,
        "max_num_batched_tokens": STEP_TOKENS,
        "prefix_caching": True,
    }
    take_orders(lambda: OpenVino(model, threads), ("openvino-genai", "openvino"), settings)
