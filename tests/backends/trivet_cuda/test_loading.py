"""A rank reads its part and no more, and takes little of the host's memory beside the weights themselves."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from trivet.contract_suite.tiny_models import make_tiny_model
from trivet.models.model_files import open_model
from trivet.runners.slices import Rank, Span
from trivet.runners.stored_matrix import StoredMatrix
from trivet_cuda.backend import CudaBackend, runner_shape
from trivet_cuda.op_table import TWINS
from trivet_cuda.runner import CudaRunner

sys.path.append(str(Path(__file__).parent))  # cpu_device
from cpu_device import CONFIG, INFO, CpuDevice

LOAD = """
import json, sys, threading
import torch
from dataclasses import replace
from trivet.contract import DeviceInfo, RunnerConfig
from trivet.models.model_files import open_model
from trivet.runners.sharded_weights import Packer
from trivet.runners.slices import Rank
from trivet_cuda.backend import CudaBackend, runner_shape
from trivet_cuda.op_table import TWINS
from trivet_cuda.runner import CudaRunner

class Host:
    torch_device = torch.device("cpu")
    arch, num_sms = 90, 1
    def release(self): pass

def anonymous_bytes():
    for line in open("/proc/self/status"):
        if line.startswith("RssAnon"):
            return int(line.split()[1]) << 10

files = open_model(sys.argv[1])
device = DeviceInfo("cuda", 0, "GPU-1", "test", "sm_90", 1 << 36, 1 << 36, frozenset({"bf16"}))
config = RunnerConfig(max_model_len=64, max_num_seqs=2, num_blocks=8, tensor_parallel=2)
plan = CudaBackend().plan(files.spec, files.weights, config, [device] * 2)
shape = runner_shape(files.spec, config, plan, [device] * 2)
runner = CudaRunner(files.spec, plan, shape, Host(), TWINS, Rank(1, 2))
held_now, seen, done, has_ended = [0], [], [], threading.Event()
pack = Packer.pack
def counting(self, *args, **kwargs):
    packed = pack(self, *args, **kwargs)
    held_now[0] += packed.size_bytes
    return packed
Packer.pack = counting
before = anonymous_bytes()
def watch():
    # Weights that are counted a moment later than they are there are beside them at most one matrix.
    while not has_ended.wait(0.0005):
        now = held_now[0]
        seen.append(anonymous_bytes() - before - now)
watching = threading.Thread(target=watch)
watching.start()
runner.load(files.weights, lambda now, total: done.append((now, total)))
has_ended.set()
watching.join()
held = {part.name: part.size_bytes for part in runner.memory()}["weights"]
print(json.dumps({"beside": max(seen), "samples": len(seen), "held": held, "done": done}))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Some 110 MB in bfloat16, in shards of at most 24 MB; a rank has half of tables of 24 MB."""
    from transformers import LlamaConfig, LlamaForCausalLM

    target = tmp_path_factory.mktemp("models") / "sharded"
    config = LlamaConfig(
        vocab_size=24576,
        hidden_size=512,
        intermediate_size=2048,
        num_hidden_layers=8,
        num_attention_heads=8,
        num_key_value_heads=4,
        max_position_embeddings=128,
        tie_word_embeddings=False,
    )
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(target, max_shard_size="24MB")
    return target


@pytest.mark.parametrize("model", ["mistral", "llama-tied"])
def test_the_ranks_together_read_each_matrix_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str
) -> None:
    files = open_model(make_tiny_model(model, tmp_path))
    assert files.spec is not None
    backend, config = CudaBackend(), replace(CONFIG, tensor_parallel=2)
    plan = backend.plan(files.spec, files.weights, config, [INFO] * 2)
    shape = runner_shape(files.spec, config, plan, [INFO] * 2)
    read = [0, 0]
    given = StoredMatrix._bytes
    for index in range(2):

        def counted(matrix: StoredMatrix, rows: Span, columns: Span, index: int = index) -> Any:
            found = given(matrix, rows, columns)
            read[index] += found.nbytes
            return found

        monkeypatch.setattr(StoredMatrix, "_bytes", counted)
        runner = CudaRunner(files.spec, plan, shape, CpuDevice(), TWINS, Rank(index, 2))
        runner.load(files.weights, lambda done, total: None)
        runner.close()
    matrices = sum(each.size_bytes for each in files.weights.tensors if len(each.shape) == 2)
    assert sum(read) == matrices
    assert max(read) <= 0.51 * matrices


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads Linux's /proc")
def test_host_memory_holds_one_slice_beside_the_weights(folder: Path) -> None:
    """Neither a whole matrix, nor a slice in float32."""
    shards = [file.stat().st_size for file in folder.glob("*.safetensors")]
    assert len(shards) >= 4
    done = subprocess.run(
        [sys.executable, "-c", LOAD, str(folder)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    # On this device the weights themselves lie in host memory: a sample is beside what is packed then.
    assert found["samples"] > 20
    largest_slice = 24576 * 512 * 2 // 2
    assert largest_slice < max(shards)
    assert found["beside"] <= 1.3 * largest_slice, found["beside"] / largest_slice
    assert found["held"] < 0.55 * sum(shards)
    bytes_done = [now for now, _ in found["done"]]
    assert bytes_done == sorted(bytes_done)
    # The last call says the whole in any case.
    assert found["done"][-1][0] == found["done"][-1][1]
    assert found["done"][-2][0] > 0.99 * found["done"][-2][1]
    assert len(set(bytes_done)) > 50
