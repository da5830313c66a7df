"""Adapters from their files: PEFT's arithmetic, and refusals of what would be computed otherwise."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from trivet.contract_suite.tiny_adapters import make_tiny_adapter
from trivet.errors import ModelFilesError, TrivetError, Unsupported, WeightsError
from trivet.models import peft_config
from trivet.models.adapter_files import AdapterFiles, read_adapter
from trivet.models.model_files import open_model
from trivet.models.spec import ModelSpec
from trivet.weights.reader import TensorReader

PREFIX = "base_model.model.model.layers.0."
Change = Callable[[dict[str, Any]], None]


@pytest.fixture
def spec(save_tiny: Callable[..., Any], tmp_path: Path) -> ModelSpec:
    save_tiny(tmp_path / "model", "llama")
    found = open_model(tmp_path / "model").spec
    assert found is not None
    return found


@pytest.fixture
def folder(spec: ModelSpec, tmp_path: Path) -> Path:
    return make_tiny_adapter(spec, 1, tmp_path / "adapter")


def read(folder: Path, spec: ModelSpec) -> AdapterFiles:
    return read_adapter(folder, spec, "sql")


def change_config(folder: Path, **values: object) -> None:
    file = folder / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


def change_tensors(folder: Path, change: Change) -> None:
    tensors = dict(load_file(folder / "adapter_model.safetensors"))
    change(tensors)
    save_file(tensors, folder / "adapter_model.safetensors")


def test_every_matrix_is_found_with_its_rank_and_scale(folder: Path, spec: ModelSpec) -> None:
    adapter = read(folder, spec)
    assert (adapter.rank, adapter.base_model) == (8, "tiny")
    assert adapter.parts == ("q", "k", "v", "o", "gate", "up", "down")
    assert len(adapter.weights.tensors) == 2 * 7 * spec.num_layers
    a, b = adapter.weights["layers.1.down.lora_a"], adapter.weights["layers.1.down.lora_b"]
    assert (a.scale, b.scale) == (1.0, 16 / 8)
    stored = load_file(folder / "adapter_model.safetensors")
    with TensorReader(adapter.weights) as reader:
        np.testing.assert_array_equal(
            reader.float32("layers.0.q.lora_b"), 2 * stored[f"{PREFIX}self_attn.q_proj.lora_B.weight"]
        )


def test_rslora_divides_by_the_root_of_the_rank(folder: Path, spec: ModelSpec) -> None:
    change_config(folder, use_rslora=True)
    assert read(folder, spec).weights["layers.0.q.lora_b"].scale == pytest.approx(16 / 8**0.5)


def test_patterns_of_rank_and_alpha_go_before_what_is_for_all(folder: Path, spec: ModelSpec) -> None:
    """By PEFT's rule: the end of the module's name, as a regular expression."""

    def smaller(tensors: dict[str, Any]) -> None:
        name = f"{PREFIX}self_attn.q_proj.lora_"
        tensors[f"{name}A.weight"] = np.ascontiguousarray(tensors[f"{name}A.weight"][:2])
        tensors[f"{name}B.weight"] = np.ascontiguousarray(tensors[f"{name}B.weight"][:, :2])

    change_tensors(folder, smaller)
    change_config(
        folder, rank_pattern={r"layers\.0\.self_attn\.q_proj": 2}, alpha_pattern={"proj_x": 1, "q_proj": 5}
    )
    weights = read(folder, spec).weights
    scales = [weights[f"layers.{name}.lora_b"].scale for name in ("0.q", "1.q", "0.k")]
    assert scales == [5 / 2, 5 / 8, 16 / 8]


def test_what_peft_and_trainers_write_besides_changes_nothing(folder: Path, spec: ModelSpec) -> None:
    change_config(
        folder,
        init_lora_weights="EVA",
        eva_config={"rho": 2.0},
        loftq_config={},
        kasa_config=None,
        use_bdlora=None,
        megatron_core="megatron.core",
        qalora_group_size=16,
        peft_version="0.19.0",
        task_type="CAUSAL_LM",
        unsloth_fixed=True,
    )
    assert read(folder, spec).weights["layers.0.q.lora_b"].scale == 16 / 8


def test_a_pattern_that_computes_for_ever_is_ended(
    folder: Path, spec: ModelSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exponential in the length of a module's name."""
    monkeypatch.setattr(peft_config, "PATTERNS_S", 0.2)
    change_config(folder, alpha_pattern={r"((.|\w)*)*[!?]": 1})
    with pytest.raises(Unsupported, match=r"its patterns take more than 0\.2 s, the last is"):
        read(folder, spec)


def test_names_with_the_adapter_in_them_and_a_transposed_layout_flag_are_read(
    folder: Path, spec: ModelSpec
) -> None:
    """fan_in_fan_out is about the stored W alone, which is not touched."""
    plain = read(folder, spec).weights

    def rename(tensors: dict[str, Any]) -> None:
        for name in list(tensors):
            tensors[name.replace(".weight", ".default.weight")] = tensors.pop(name)

    change_tensors(folder, rename)
    change_config(folder, fan_in_fan_out=True)
    assert [t.name for t in read(folder, spec).weights.tensors] == [t.name for t in plain.tensors]


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"use_dora": True}, "DoRA (use_dora) scales"),
        ({"bias": "all"}, "its biases replace the model's"),
        ({"lora_bias": True}, "adds biases of its own"),
        ({"modules_to_save": ["lm_head"]}, "whole modules are replaced"),
        ({"alora_invocation_tokens": [1]}, "(aLoRA)"),
        ({"layer_replication": [[0, 1]]}, "copies layers"),
        ({"trainable_token_indices": [1]}, "changes embeddings of tokens"),
        ({"init_lora_weights": "pissa_niter_4"}, "init_lora_weights is 'pissa_niter_4'"),
        ({"init_lora_weights": "lora_ga"}, "init_lora_weights is 'lora_ga'"),
        ({"kasa_config": {"beta": 1}}, "its config sets kasa_config to {'beta': 1}"),
        ({"of_next_year": 3}, "its config sets of_next_year to 3, and what that computes is not known"),
        ({"rank_pattern": {"(a{1000}){1000}": 4}}, "and none with braces"),
        ({"alpha_pattern": {"|".join(["q_proj"] * 90): 99}}, "alpha_pattern has a pattern of 629 characters"),
        ({"peft_type": "PROMPT_TUNING"}, "peft_type is 'PROMPT_TUNING'; adapters of the type LORA"),
    ],
)
def test_what_would_be_computed_otherwise_is_refused(
    folder: Path, spec: ModelSpec, config: dict[str, object], told: str
) -> None:
    change_config(folder, **config)
    with pytest.raises(Unsupported, match=rf"^adapter 'sql' \({folder}\): .*{re.escape(told)}"):
        read(folder, spec)


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"lora_alpha": 0}, "lora_alpha is 0; it must be a number above 0"),
        ({"lora_alpha": 10**400}, "it must be a number above 0 and below 2^31"),
        ({"use_rslora": "false"}, "use_rslora is 'false'; it must be true or false"),
        ({"r": 4}, "are of rank 8 and its config says 4"),
        ({"alpha_pattern": {"(": 1}}, "alpha_pattern has '(', which is no pattern"),
    ],
)
def test_a_config_that_cannot_be_is_refused(
    folder: Path, spec: ModelSpec, config: dict[str, object], told: str
) -> None:
    change_config(folder, **config)
    with pytest.raises(TrivetError, match=re.escape(told)):
        read(folder, spec)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda t: t.update({"base_model.model.lm_head.lora_A.weight": np.zeros((2, 2))}), "lm_head.lora_A"),
        (
            lambda t: t.update({f"{PREFIX}mlp.x.lora_A.weight": np.zeros((2, 2))}),
            "which are q_proj, k_proj",
        ),
        (lambda t: t.pop(f"{PREFIX}self_attn.q_proj.lora_A.weight"), "layers.0.q one of the two"),
        (
            lambda t: t.update({f"{PREFIX}self_attn.q_proj.lora_A.weight": np.zeros((8, 63), np.float32)}),
            "adapts layers.0.q by [64, 8] x [8, 63] and the model has [64, 64]",
        ),
        (lambda t: [t.pop(name) for name in list(t)], "it adapts nothing"),
    ],
)
def test_tensors_that_do_not_fit_the_model_are_refused(
    folder: Path, spec: ModelSpec, change: Change, told: str
) -> None:
    change_tensors(folder, change)
    with pytest.raises(TrivetError, match=re.escape(told)):
        read(folder, spec)


def test_an_adapter_of_a_deeper_model_is_refused(folder: Path, spec: ModelSpec) -> None:
    def deeper(tensors: dict[str, Any]) -> None:
        for kind in ("A", "B"):
            name = f"{PREFIX}self_attn.q_proj.lora_{kind}.weight"
            tensors[name.replace("layers.0", "layers.7")] = tensors[name]

    change_tensors(folder, deeper)
    with pytest.raises(WeightsError, match=r"it adapts layers\.7\.q, which LlamaForCausalLM of 3 layers"):
        read(folder, spec)


def test_a_folder_that_is_none_says_what_is_missing(folder: Path, spec: ModelSpec) -> None:
    (folder / "adapter_model.safetensors").rename(folder / "adapter_model.bin")
    with pytest.raises(ModelFilesError, match=r"but adapter_model\.bin, a pickle"):
        read(folder, spec)
    with pytest.raises(ModelFilesError, match=r"there is no adapter_config\.json"):
        read(folder / "nowhere", spec)


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("x" * 300, "adapter_config.json cannot be looked at: File name too long"),
        ("x" * 300 + ".gguf", "cannot be looked at: File name too long"),
        ("~nobody-of-this-name/x", "write the whole path"),
    ],
)
def test_a_path_that_cannot_be_looked_at_is_told(
    spec: ModelSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, told: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelFilesError, match=rf"^adapter 'sql' .*{re.escape(told)}"):
        read(Path(path), spec)


def test_a_gguf_adapter_is_the_same_as_the_folder_it_was_made_of(
    folder: Path, spec: ModelSpec, tmp_path: Path
) -> None:
    """As llama.cpp's converter writes it: rows of B of a llama's q and k are interleaved."""
    file = tmp_path / "adapter.gguf"
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", 16.0)
    names = {"q_proj": "attn_q", "k_proj": "attn_k", "up_proj": "ffn_up"}
    heads = {"q_proj": spec.kinds[0].attention.num_heads, "k_proj": spec.kinds[0].attention.num_kv_heads}
    kept = {}
    for name, values in load_file(folder / "adapter_model.safetensors").items():
        layer, module, kind = name.split(".")[4], name.split(".")[6], name.split(".")[7][-1]
        if module not in names:
            continue
        kept[name] = values
        if kind == "B" and module in heads:
            halves = values.reshape(heads[module], 2, -1, values.shape[1])
            values = np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(values.shape)
        writer.add_tensor(f"blk.{layer}.{names[module]}.weight.lora_{kind.lower()}", values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    save_file(kept, folder / "adapter_model.safetensors")
    one, other = read(folder, spec), read(file, spec)
    assert [t.name for t in other.weights.tensors] == [t.name for t in one.weights.tensors]
    with TensorReader(one.weights) as left, TensorReader(other.weights) as right:
        for tensor in one.weights.tensors:
            np.testing.assert_array_equal(left.float32(tensor.name), right.float32(tensor.name))
