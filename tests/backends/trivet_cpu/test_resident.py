"""The plan against the truth: what a process that runs a model has in memory, all of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from trivet.contract_suite.tiny_models import VOCAB_SIZE, make_tiny_model
from trivet.demo_model import find_demo_model

# As the engine process does, with a batch of prompts whose every token has logits, so that the workspace is
# used; prints planned and resident bytes, of the step after which it was most.
RUN = """
import sys
import trivet.engine.process  # all that an engine has loaded
from trivet.engine_settings import parse_engine_settings
from trivet.engine.assembly import assemble
from trivet.engine.placement import place
from trivet.engine.heartbeat import resident_bytes
from trivet.engine.sequence import Sequence
from trivet.models.model_files import open_model
from trivet.plugins import load_plugins
from trivet.sampling_params import SamplingParams

host = load_plugins()
files = open_model(sys.argv[1], host)
settings = parse_engine_settings(dict(pair.split("=", 1) for pair in sys.argv[2:]))
placement = place(host, files, settings, "cpu")
engine = assemble(files, placement, settings)
length = placement.plan.max_num_batched_tokens * 4 // 5
for number in range(3):  # two whole steps and a part
    prompt = [1 + number + i % 90 for i in range(length)]
    engine.core.add(Sequence(str(number), prompt, SamplingParams(max_tokens=4, prompt_logprobs=1)))
most = 0
while engine.core.has_work:
    engine.core.step()
    most = max(most, resident_bytes())
print(placement.plan.total_bytes, most)
"""
# On one thread, since other tests have the other cores; a step of 256 tokens would take it many seconds.
TORCH = ("options.kernels=torch", "num_threads=1", "max_num_batched_tokens=128")


@pytest.mark.parametrize(
    "settings",
    [
        (),
        ("dtype=float32", "max_model_len=2048", "num_gpu_blocks_override=513"),
        ("kv_cache_dtype=int8", "num_gpu_blocks_override=65"),  # little more than weights and process
        (*TORCH, "max_model_len=2048", "num_gpu_blocks_override=513"),
    ],
)
def test_a_process_holds_what_was_planned(settings: tuple[str, ...]) -> None:
    expect_agreement(find_demo_model(), *settings)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("llama", ()),
        ("qwen2", ("dtype=float32",)),
        ("qwen3", TORCH),
        ("mistral", (*TORCH, "dtype=float32")),
        ("olmo2", ()),  # computed by transformers
    ],
)
def test_of_a_tiny_model_the_process_is_nearly_all(
    name: str, settings: tuple[str, ...], tmp_path: Path
) -> None:
    folder = make_tiny_model(name, tmp_path)
    words = {f"t{token}": token for token in range(VOCAB_SIZE)}
    Tokenizer(WordLevel(words, unk_token="t0")).save(str(folder / "tokenizer.json"))
    expect_agreement(folder, *settings)


def expect_agreement(model: Path, *settings: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(model), *settings], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    planned, resident = map(int, done.stdout.split())
    print(f"planned {planned >> 20} MiB, resident {resident >> 20} MiB, {resident / planned - 1:+.1%}")
    assert resident == pytest.approx(planned, rel=0.1)
