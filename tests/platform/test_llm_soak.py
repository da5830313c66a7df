"""A crowd on SmolLM2: memory flat, and each answer the same whenever it is asked for.

`tests/run soak` runs it for minutes; plain pytest runs the short form.
"""

from __future__ import annotations

import random
import time

import psutil

from trivet import LLM, SamplingParams
from trivet.demo_model import find_demo_model

GROWTH_LIMIT = 0.05  # of the process, after the warm-up
WAVE = 12
SHORT_WAVES = 5
WORDS = ["gold", "iron", "lead", "zinc", "tin", "copper", "silver", "argon", "neon", "helium", "carbon"]


def wave_of(rng: random.Random) -> tuple[list[str], list[SamplingParams]]:
    """Prompts that begin alike, of all lengths, and wishes of all kinds."""
    prompts = [" ".join(rng.choices(WORDS, k=rng.choice([3, 9, 20]))) for _ in range(WAVE)]
    prompts = [
        rng.choice(["", "The metals and the gases are these, in no order: "]) + prompt for prompt in prompts
    ]
    params = [
        SamplingParams(
            temperature=rng.choice([0.0, 0.8]),
            seed=rng.randrange(100),
            max_tokens=rng.choice([1, 4, 20]),
            logprobs=rng.choice([None, 2]),
            presence_penalty=rng.choice([0.0, 0.5]),
            stop=rng.choice([(), ("tin", "\n")]),
            ignore_eos=True,
        )
        for _ in range(WAVE)
    ]
    return prompts, params


def test_waves_of_requests_leave_nothing_behind(soak_minutes: float) -> None:
    """KV for a few of them, so that most are preempted, swapped or wait; the first wave comes again."""
    settings = {"dtype": "float32", "max_model_len": 96, "max_num_seqs": 12, "num_gpu_blocks_override": 14}
    process, end_s = psutil.Process(), time.monotonic() + 60 * soak_minutes
    with LLM(find_demo_model(), **settings, swap_space=0.02) as llm:
        core = llm.engine.core
        rss: list[int] = []
        first: list[list[int]] = []
        while len(rss) < SHORT_WAVES or time.monotonic() < end_s:
            prompts, params = wave_of(random.Random(len(rss) % 4))
            outputs = llm.generate(prompts, params, use_tqdm=False)
            tokens = [output.outputs[0].token_ids for output in outputs]
            first = first or tokens
            if len(rss) % 4 == 0:
                assert tokens == first
            load = core.load()
            assert (load.kv_usage, load.swap_usage, load.num_running, load.num_waiting) == (0.0, 0.0, 0, 0)
            rss.append(process.memory_info().rss)
        assert load.num_preemptions > 0
        core.reset_prefix_cache()
        assert core.block_pool.num_free == core.block_pool.num_usable
    growth = max(rss[-2:]) / max(rss[1:3]) - 1
    assert growth < GROWTH_LIMIT, f"{growth:.1%} more memory after {len(rss)} waves: {rss}"
