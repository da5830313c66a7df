"""Folders in Hugging Face's layout, made by transformers' own save_pretrained."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers
from safetensors.torch import load_file, save_file

from trivet.engine.placement import planned_spec
from trivet.errors import ModelFilesError, UnsupportedArchitecture, WeightsError
from trivet.models.architectures.llama import llama_spec
from trivet.models.model_files import ModelFiles, open_model
from trivet.models.spec import MLP, Attention, Layer, ModelSpec, Norm
from trivet.models.transformers_outline import outline_spec
from trivet.plugins import PluginHost, hookimpl
from trivet.weights.reader import TensorReader

SaveTiny = Callable[..., transformers.PreTrainedModel]

FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama tied": ("llama", {"tie_word_embeddings": True}),
    "llama with biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama with wide heads": ("llama", {"head_dim": 32}),
    "mistral": ("mistral", {"sliding_window": 16}),
    "qwen2": ("qwen2", {"tie_word_embeddings": True}),
    "qwen2 with windows": (
        "qwen2",
        {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1},
    ),
    "qwen3": ("qwen3", {"head_dim": 32, "tie_word_embeddings": True}),
    "qwen3 with biases": ("qwen3", {"head_dim": 16, "attention_bias": True}),
}
STEMS = {
    "attention_norm": "input_layernorm",
    "mlp_norm": "post_attention_layernorm",
    **{x: f"self_attn.{x}_proj" for x in "qkvo"},
    **{f"{x}_norm": f"self_attn.{x}_norm" for x in "qk"},
    **{x: f"mlp.{x}_proj" for x in ("gate", "up", "down")},
}


def hf_name(canonical: str) -> str:
    parts = canonical.split(".")
    if parts[0] == "layers":
        return f"model.layers.{parts[1]}.{STEMS[parts[2]]}.{parts[3]}"
    return {"embed": "model.embed_tokens", "norm": "model.norm", "head": "lm_head"}[parts[0]] + f".{parts[1]}"


def edit_config(folder: Path, **changes: Any) -> None:
    """Change keys of config.json; None deletes."""
    path = folder / "config.json"
    config = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({key: value for key, value in config.items() if value is not None}))


def edit_tensors(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")


def assert_values_are_the_model_parameters(files: ModelFiles, model: transformers.PreTrainedModel) -> None:
    parameters = {name: value.detach().numpy() for name, value in model.named_parameters()}
    assert {hf_name(tensor.name) for tensor in files.weights.tensors} == parameters.keys()
    with TensorReader(files.weights) as reader:
        for tensor in files.weights.tensors:
            np.testing.assert_array_equal(reader.float32(tensor.name), parameters[hf_name(tensor.name)])


@pytest.fixture
def llama(tmp_path: Path, save_tiny: SaveTiny) -> Path:
    save_tiny(tmp_path, "llama")
    return tmp_path


@pytest.mark.parametrize("case", FAMILIES)
def test_saved_model_has_its_parameters_under_canonical_names(
    case: str, tmp_path: Path, save_tiny: SaveTiny
) -> None:
    family, config = FAMILIES[case]
    model = save_tiny(tmp_path, family, **config)
    files = open_model(tmp_path)
    assert files.spec is not None
    assert files.spec.tie_embeddings == config.get("tie_word_embeddings", False)
    assert files.architecture == files.spec.architecture == type(model).__name__
    assert_values_are_the_model_parameters(files, model)


def test_sharded_model_is_the_same_model(tmp_path: Path, save_tiny: SaveTiny) -> None:
    model = save_tiny(tmp_path, "llama", max_shard_size="100KB")
    files = open_model(tmp_path)
    assert len({tensor.file for tensor in files.weights.tensors}) > 2
    assert_values_are_the_model_parameters(files, model)


def test_config_of_transformers_4_gives_the_same_spec(llama: Path) -> None:
    scaling = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }
    edit_config(llama, rope_parameters={**scaling, "rope_theta": 5e5})
    new = open_model(llama).spec
    edit_config(llama, rope_parameters=None, rope_scaling=scaling, rope_theta=5e5)
    assert open_model(llama).spec == new


def test_facts_of_the_folder(llama: Path) -> None:
    edit_config(llama, eos_token_id=2, bos_token_id=1)
    (llama / "generation_config.json").write_text(json.dumps({"eos_token_id": [5, 2], "temperature": 0.6}))
    files = open_model(llama)
    assert (files.format, files.quantization, files.context_length) == ("safetensors", "f32", 256)
    assert (files.eos_token_ids, files.bos_token_id) == ((2, 5), 1)
    assert files.generation_defaults == {"temperature": 0.6}
    assert (files.path, files.name) == (llama, llama.name)
    assert {file.name for file in files.files} == {
        "config.json",
        "generation_config.json",
        "model.safetensors",
    }
    assert files.size_bytes == sum(file.stat().st_size for file in llama.iterdir())
    assert files.config["model_type"] == "llama"


def test_model_in_a_hugging_face_cache_has_the_repository_name(tmp_path: Path, save_tiny: SaveTiny) -> None:
    folder = tmp_path / "models--Qwen--Qwen3-0.6B" / "snapshots" / "0a1b2c"
    save_tiny(folder, "llama")
    assert open_model(folder).name == "Qwen3-0.6B"


def test_rows_beyond_the_tokenizer_are_no_tokens(llama: Path) -> None:
    tokenizer = {"model": {"vocab": {"a": 0, "b": 70}}, "added_tokens": [{"id": 80, "content": "<end>"}]}
    (llama / "tokenizer.json").write_text(json.dumps(tokenizer))
    spec = open_model(llama).spec
    assert spec is not None
    assert (spec.num_tokens, spec.vocab_size) == (81, 96)


def test_a_tokenizer_of_another_model_is_refused_with_both_files_and_counts(llama: Path) -> None:
    tokenizer = {"model": {"vocab": {"a": 0, "b": 96}}, "added_tokens": []}
    (llama / "tokenizer.json").write_text(json.dumps(tokenizer))
    told = r"tokenizer.json has ids for 97 tokens, .* and .*config.json gives the model 96 \(vocab_size\): "
    with pytest.raises(ModelFilesError, match=told):
        open_model(llama)


def test_a_tokenizer_of_another_model_is_refused_also_where_transformers_would_run_the_model(
    tmp_path: Path, save_tiny: SaveTiny
) -> None:
    save_tiny(tmp_path, "gpt_neox", tie_word_embeddings=False)
    (tmp_path / "tokenizer.json").write_text(json.dumps({"model": {"vocab": {"a": 0, "b": 96}}}))
    with pytest.raises(ModelFilesError, match=r"has ids for 97 tokens, .* gives the model 96 \(vocab_size\)"):
        open_model(tmp_path)


@pytest.mark.parametrize("vocab", [{"a": 0, "b": 95}, {"a": 0, "b": 95, "<image>": 96}])
def test_an_added_token_may_lie_beyond_the_rows(llama: Path, vocab: dict[str, int]) -> None:
    """As Gemma 3's for images, in the files of those that read text only."""
    tokenizer = {"model": {"vocab": vocab}, "added_tokens": [{"id": 96, "content": "<image>"}]}
    (llama / "tokenizer.json").write_text(json.dumps(tokenizer))
    spec = open_model(llama).spec
    assert spec is not None
    assert (spec.num_tokens, spec.vocab_size) == (96, 96)


def test_head_in_the_file_is_used_whatever_the_config_says(llama: Path) -> None:
    edit_config(llama, tie_word_embeddings=True)
    files = open_model(llama)
    assert files.spec is not None
    assert not files.spec.tie_embeddings
    assert "head.weight" in files.weights


def test_missing_head_is_named_unless_tied(llama: Path) -> None:
    edit_tensors(llama, lambda tensors: tensors.pop("lm_head.weight"))
    with pytest.raises(WeightsError, match=r"tensor 'head.weight' is in none of .*model.safetensors"):
        open_model(llama)
    edit_config(llama, tie_word_embeddings=True)
    assert open_model(llama).spec is not None


def test_model_saved_without_its_head_class_is_read(tmp_path: Path, save_tiny: SaveTiny) -> None:
    model = save_tiny(tmp_path, "qwen3", head_dim=16, tie_word_embeddings=True)
    edit_tensors(
        tmp_path,
        lambda tensors: [tensors.update({n.removeprefix("model."): tensors.pop(n)}) for n in list(tensors)],
    )
    assert_values_are_the_model_parameters(open_model(tmp_path), model)


def test_wrong_shape_names_file_tensor_found_and_expected(llama: Path) -> None:
    edit_config(llama, intermediate_size=80)
    with pytest.raises(
        WeightsError,
        match=r"model.safetensors: tensor 'layers.0.gate.weight' has the shape \[96, 64\] .*\[80, 64\]",
    ):
        open_model(llama)


def test_format_that_cannot_be_read_names_file_and_tensor(llama: Path) -> None:
    name = "model.layers.1.mlp.up_proj.weight"
    edit_tensors(llama, lambda tensors: tensors.update({name: tensors[name].char()}))
    with pytest.raises(
        WeightsError, match=r"model.safetensors: tensor 'layers.1.up.weight' is stored as 'i8'"
    ):
        open_model(llama)


def test_truncated_weights_name_file_and_tensor(llama: Path) -> None:
    weights = llama / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    with pytest.raises(WeightsError, match=r"model.safetensors: tensor 'model.* it is truncated"):
        open_model(llama)


def test_tensor_that_the_spec_does_not_read_is_left_out_and_logged(
    llama: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def change(tensors: dict[str, Any]) -> None:
        weight = tensors["model.norm.weight"]
        tensors["model.layers.0.self_attn.q_proj.bias"] = weight.clone()
        tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = weight.clone()

    edit_tensors(llama, change)
    with caplog.at_level(logging.WARNING):
        files = open_model(llama)
    assert "layers.0.q.bias" not in files.weights
    assert caplog.messages == ["unread_tensors=1 first=model.layers.0.self_attn.q_proj.bias"]


@pytest.mark.parametrize("names", [None, [], "LlamaForCausalLM", [5]])
def test_config_without_an_architecture_is_refused(names: object, llama: Path) -> None:
    edit_config(llama, architectures=names)
    with pytest.raises(
        ModelFilesError, match=r"config.json: architectures is .*; it must name the model's class"
    ):
        open_model(llama)


def test_damaged_config_names_the_folder(llama: Path) -> None:
    edit_config(llama, hidden_size="wide")
    with pytest.raises(ModelFilesError, match=rf"{llama.name}: config.json: hidden_size is 'wide'"):
        open_model(llama)


def test_quantised_weights_are_refused_with_a_way_out(llama: Path) -> None:
    edit_config(llama, quantization_config={"quant_method": "gptq", "bits": 4})
    with pytest.raises(WeightsError, match=r"quantised by 'gptq' are not read; use .* GGUF"):
        open_model(llama)


@pytest.mark.parametrize(("key", "value"), [("is_causal", False), ("use_bidirectional_attention", True)])
def test_attention_in_both_directions_is_refused(llama: Path, key: str, value: bool) -> None:
    edit_config(llama, **{key: not value})
    open_model(llama)
    edit_config(llama, **{key: value})
    with pytest.raises(UnsupportedArchitecture, match=rf"config.json: {key} is {str(value).lower()}"):
        open_model(llama)


def test_a_tensor_under_two_names_is_refused(llama: Path) -> None:
    edit_tensors(llama, lambda tensors: tensors.update({"norm.weight": tensors["model.norm.weight"] + 1}))
    with pytest.raises(WeightsError, match=r"'model.norm.weight' and 'norm.weight' both are"):
        open_model(llama)


def test_folder_without_config_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(ModelFilesError, match=r"has no config.json and no GGUF file"):
        open_model(tmp_path)


def test_architecture_without_a_spec_is_left_to_transformers(tmp_path: Path, save_tiny: SaveTiny) -> None:
    save_tiny(tmp_path, "gpt_neox", tie_word_embeddings=False)
    files = open_model(tmp_path)
    assert files.spec is None
    assert files.spec_missing_because is not None
    assert files.spec_missing_because.startswith(
        "architecture 'GPTNeoXForCausalLM' has no spec; there are Llama"
    )
    assert files.context_length == 256
    assert "gpt_neox.embed_in.weight" in files.weights


@pytest.mark.parametrize("key", ["n_ctx", "n_positions", "seq_length", "max_seq_len"])
def test_page_and_plan_read_the_context_length_alike(tmp_path: Path, save_tiny: SaveTiny, key: str) -> None:
    save_tiny(tmp_path, "gpt_neox", tie_word_embeddings=False)
    config = json.loads((tmp_path / "config.json").read_text())
    del config["max_position_embeddings"]
    (tmp_path / "config.json").write_text(json.dumps({**config, key: 77}))
    files = open_model(tmp_path)
    assert files.context_length == 77
    assert outline_spec(files.config).max_position == 77


def test_a_model_left_to_transformers_draws_no_token_that_its_tokenizer_lacks(
    tmp_path: Path, save_tiny: SaveTiny
) -> None:
    save_tiny(tmp_path, "gpt_neox", tie_word_embeddings=False)
    assert planned_spec(open_model(tmp_path)).num_tokens == 96
    (tmp_path / "tokenizer.json").write_text(json.dumps({"model": {"vocab": {"a": 0, "b": 89}}}))
    spec = planned_spec(open_model(tmp_path))
    assert (spec.num_tokens, spec.vocab_size) == (90, 96)


def test_config_that_a_spec_cannot_state_is_left_to_transformers(llama: Path) -> None:
    edit_config(llama, hidden_act="mish")
    files = open_model(llama)
    assert files.spec is None
    assert "hidden_act is 'mish'" in str(files.spec_missing_because)


class Plugin:
    """Offers one new architecture and replaces one of ours."""

    @hookimpl
    def trivet_architectures(self) -> dict[str, Callable[[Any], ModelSpec]]:
        def refuse(config: Any) -> ModelSpec:
            raise UnsupportedArchitecture("not today")

        return {
            "BrandNewForCausalLM": lambda config: replace(
                llama_spec(config), architecture="BrandNewForCausalLM"
            ),
            "MistralForCausalLM": refuse,
        }


def test_plugin_offers_architectures(llama: Path) -> None:
    host = PluginHost()
    host.register(Plugin(), "brand_new")
    edit_config(llama, architectures=["BrandNewForCausalLM"])
    assert open_model(llama).spec is None
    spec = open_model(llama, host).spec
    assert spec is not None
    assert spec.architecture == "BrandNewForCausalLM"
    edit_config(llama, architectures=["MistralForCausalLM"])
    assert open_model(llama, host).spec is None


def test_whole_spec_of_a_saved_llama(llama: Path) -> None:
    spec = open_model(llama).spec
    assert spec is not None
    rope = spec.kinds[0].attention.rope
    assert spec == ModelSpec(
        architecture="LlamaForCausalLM",
        vocab_size=96,
        num_tokens=96,
        hidden_size=64,
        max_position=256,
        kinds=(Layer(Attention(4, 2, 16, 0.25, rope), MLP(96)),),
        layers=(0, 0, 0),
        norm=Norm(eps=1e-6),
    )
