"""Models from GGUF, written by the package's writer as llama.cpp's converter does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import transformers

from trivet.errors import ModelFilesError, UnsupportedArchitecture, WeightsError
from trivet.models.model_files import open_model
from trivet.models.spec import ModelSpec
from trivet.weights.reader import TensorReader

SaveTiny = Callable[..., transformers.PreTrainedModel]
WriteGGUF = Callable[..., Path]
Add = Callable[[gguf.GGUFWriter], object]

FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama tied": ("llama", {"tie_word_embeddings": True}),
    "llama with biases": ("llama", {"attention_bias": True}),
    "llama with wide heads": ("llama", {"head_dim": 32}),
    "mistral": ("mistral", {"sliding_window": None}),
    "qwen2": ("qwen2", {}),
    "qwen3": ("qwen3", {"head_dim": 32, "tie_word_embeddings": True}),
}


@pytest.fixture
def llama(tmp_path: Path, save_tiny: SaveTiny) -> transformers.PreTrainedModel:
    return save_tiny(tmp_path / "llama", "llama")


def opened(path: Path) -> ModelSpec:
    spec = open_model(path).spec
    assert spec is not None
    return spec


@pytest.mark.parametrize("case", FAMILIES)
def test_gguf_is_the_same_model_as_the_folder_it_was_made_from(
    case: str, tmp_path: Path, save_tiny: SaveTiny, write_gguf: WriteGGUF
) -> None:
    family, config = FAMILIES[case]
    model = save_tiny(tmp_path / "folder", family, **config)
    folder, file = open_model(tmp_path / "folder"), open_model(write_gguf(tmp_path / "m.gguf", model))
    assert folder.spec is not None
    assert file.spec is not None
    # GGUF has no name of its own for Mistral, and keeps numbers as float32.
    theirs, ours = folder.spec, file.spec
    assert ours.norm.eps == np.float32(theirs.norm.eps)
    assert ours.architecture == theirs.architecture.replace("Mistral", "Llama")
    assert (ours.layers, ours.vocab_size, ours.tie_embeddings, ours.max_position) == (
        theirs.layers,
        theirs.vocab_size,
        theirs.tie_embeddings,
        theirs.max_position,
    )
    for name in ("num_heads", "num_kv_heads", "head_dim", "scale", "rope", "window", "qkv_bias", "out_bias"):
        assert getattr(ours.kinds[0].attention, name) == getattr(theirs.kinds[0].attention, name)
    assert file.weights.by_name.keys() == folder.weights.by_name.keys()
    with TensorReader(folder.weights) as expected, TensorReader(file.weights) as reader:
        for name in folder.weights.by_name:
            np.testing.assert_array_equal(reader.float32(name), expected.float32(name), err_msg=name)


def test_quantised_q_and_k_are_put_right_by_rows(
    llama: transformers.PreTrainedModel, tmp_path: Path, write_gguf: WriteGGUF
) -> None:
    kind = gguf.GGMLQuantizationType.Q4_1
    names = [f"blk.{layer}.{name}.weight" for layer in range(3) for name in ("attn_q", "attn_k", "ffn_up")]
    file = open_model(write_gguf(tmp_path / "m.gguf", llama, kinds=dict.fromkeys(names, kind)))
    with TensorReader(file.weights) as reader:
        for name in ("q", "k"):
            weight = llama.get_parameter(f"model.layers.1.self_attn.{name}_proj.weight").detach().numpy()
            expected = gguf.quants.dequantize(gguf.quants.quantize(weight, kind), kind)
            np.testing.assert_array_equal(reader.float32(f"layers.1.{name}.weight"), expected)


def test_quantization_is_the_format_of_most_numbers(
    llama: transformers.PreTrainedModel, tmp_path: Path, write_gguf: WriteGGUF
) -> None:
    names = [f"blk.{i}.{name}.weight" for i in range(3) for name in ("ffn_up", "ffn_gate", "ffn_down")]
    kinds = dict.fromkeys(names, gguf.GGMLQuantizationType.Q8_0)
    assert open_model(write_gguf(tmp_path / "m.gguf", llama, kinds=kinds)).quantization == "q8_0"


def add_vocabulary(writer: gguf.GGUFWriter) -> None:
    tokens = ["<s>", "</s>", "a", "<|eot_id|>", "<|im_end|>", "<|eom_id|>", "b"]
    writer.add_token_list(tokens)
    writer.add_token_types([3, 3, 1, 3, 1, 3, 1])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_eot_token_id(6)
    writer.add_chat_template(
        [{"name": "default", "template": "{{ messages }}"}, {"name": "tool_use", "template": "{{ tools }}"}]
    )
    writer.add_license("apache-2.0")
    writer.add_float32("general.sampling.temp", 0.5)
    writer.add_int32("general.sampling.top_k", 40)


def test_facts_of_the_metadata(
    llama: transformers.PreTrainedModel, tmp_path: Path, write_gguf: WriteGGUF
) -> None:
    path = write_gguf(tmp_path / "Tiny-Q8_0.gguf", llama, add=add_vocabulary)
    files = open_model(path)
    # eos and eot by their keys, then turn-ending texts that are control tokens: not <|im_end|> here
    assert (files.eos_token_ids, files.bos_token_id) == ((1, 3, 5, 6), 0)
    assert files.chat_templates == {"default": "{{ messages }}", "tool_use": "{{ tools }}"}
    assert files.licence == "apache-2.0"
    assert files.generation_defaults == {"temperature": 0.5, "top_k": 40}
    assert (files.path, files.name, files.files) == (path, "Tiny-Q8_0", (path,))
    assert files.size_bytes == path.stat().st_size
    assert files.config["general.architecture"] == "llama"
    assert "tokenizer.ggml.tokens" not in files.config
    assert files.spec is not None
    assert (files.spec.num_tokens, files.spec.vocab_size) == (7, 96)


def test_more_tokens_than_rows_are_refused_with_both_counts(
    llama: transformers.PreTrainedModel, tmp_path: Path, write_gguf: WriteGGUF
) -> None:
    def add(writer: gguf.GGUFWriter) -> None:
        writer.add_token_list([f"t{n}" for n in range(97)])

    path = write_gguf(tmp_path / "tiny.gguf", llama, add=add)
    told = (
        r"tiny\.gguf: tokenizer.ggml.tokens has 97 tokens and token_embd.weight in .*tiny\.gguf has 96 rows"
    )
    with pytest.raises(ModelFilesError, match=told):
        open_model(path)


def test_piece_of_a_split_model_opens_the_whole(
    llama: transformers.PreTrainedModel, tmp_path: Path, write_gguf: WriteGGUF
) -> None:
    (tmp_path / "whole").mkdir()
    whole = open_model(write_gguf(tmp_path / "whole" / "whole.gguf", llama))
    names = [f"blk.{i}.{name}.weight" for i in range(3) for name in ("ffn_up", "ffn_gate", "ffn_down")]
    first = tmp_path / "m-00001-of-00002.gguf"
    write_gguf(first, llama, tensors=dict.fromkeys(names, None))
    second = gguf.GGUFWriter(tmp_path / "m-00002-of-00002.gguf", "llama")
    for name in names:
        _, layer, stem, _ = name.split(".")
        parameter = f"model.layers.{layer}.mlp.{stem.removeprefix('ffn_')}_proj.weight"
        second.add_tensor(name, llama.get_parameter(parameter).detach().numpy())
    second.write_header_to_file()
    second.write_kv_data_to_file()
    second.write_tensors_to_file()
    second.close()
    for given in ("m-00002-of-00002.gguf", "m-00001-of-00002.gguf", "."):
        assert open_model(tmp_path / given).path == first
    files = open_model(tmp_path / "m-00002-of-00002.gguf")
    assert (files.path, files.name, len(files.files)) == (first, "m", 2)
    assert files.spec == whole.spec
    assert files.weights.size_bytes == whole.weights.size_bytes
    first.unlink()
    with pytest.raises(WeightsError, match=r"m-00001-of-00002.gguf is missing"):
        open_model(tmp_path)


def test_mistral_window_of_the_metadata_counts(
    llama: transformers.PreTrainedModel, tmp_path: Path, write_gguf: WriteGGUF
) -> None:
    spec = opened(write_gguf(tmp_path / "m.gguf", llama, add=lambda w: w.add_sliding_window(32)))
    assert spec.kinds[0].attention.window == 32


def test_tensors_that_change_no_result_are_passed_over(
    llama: transformers.PreTrainedModel, tmp_path: Path, write_gguf: WriteGGUF
) -> None:
    names = ("blk.0.ffn_up.input_scale", "blk.0.attn_rot_embd", "cls.output.weight")
    tensors = {name: np.ones(8, np.float32) for name in names}
    files = open_model(write_gguf(tmp_path / "m.gguf", llama, tensors=tensors))
    assert len(files.weights.tensors) == 3 * 9 + 3


def test_sizes_that_stand_for_every_layer_may_be_lists(
    llama: transformers.PreTrainedModel, tmp_path: Path, write_gguf: WriteGGUF
) -> None:
    def add(heads: list[int]) -> Add:
        return lambda writer: writer.add_array("llama.attention.head_count", heads)

    def write(heads: list[int]) -> Path:
        def change(writer: gguf.GGUFWriter) -> None:
            del writer.kv_data[0]["llama.attention.head_count"]
            add(heads)(writer)

        return write_gguf(tmp_path / "m.gguf", llama, add=change)

    assert opened(write([4, 4, 4])).kinds[0].attention.num_heads == 4
    with pytest.raises(UnsupportedArchitecture, match="head_count differs between layers"):
        open_model(write([4, 2, 4]))


REFUSED: dict[str, tuple[dict[str, Any], type[ModelFilesError], str]] = {
    "unknown architecture": (
        {"architecture": "mamba"},
        UnsupportedArchitecture,
        "GGUF architecture 'mamba' is not supported; supported are llama, qwen2, qwen3",
    ),
    "experts": (
        {"add": lambda w: w.add_expert_count(8)},
        UnsupportedArchitecture,
        "llama with 8 experts is not supported",
    ),
    "missing key": (
        {"drop_keys": ("embedding_length",)},
        ModelFilesError,
        "metadata of llama: embedding_length is missing; it must be a whole number",
    ),
    "missing tensor": (
        {"tensors": {"blk.2.ffn_up.weight": None}},
        WeightsError,
        "tensor 'layers.2.up.weight' is in none of",
    ),
    "scale of a matrix": (  # llama.cpp's converter writes one beside each matrix of nvfp4
        {"tensors": {"blk.1.ffn_up.scale": np.full(1, 0.5, np.float32)}},
        UnsupportedArchitecture,
        r"LlamaForCausalLM does not read tensor 'blk.1.ffn_up.scale' \(f32 of shape \[1\]\), without which",
    ),
    "bias of the head": (
        {"tensors": {"output.bias": np.ones(96, np.float32)}},
        UnsupportedArchitecture,
        "does not read tensor 'output.bias'",
    ),
    "bias of k alone": (
        {"tensors": {"blk.0.attn_k.bias": np.ones(32, np.float32)}},
        UnsupportedArchitecture,
        "does not read tensor 'blk.0.attn_k.bias'",
    ),
    "a layer too many": (
        {"tensors": {"blk.3.attn_norm.weight": np.ones(64, np.float32)}},
        UnsupportedArchitecture,
        "does not read tensor 'blk.3.attn_norm.weight'",
    ),
    "attention in both directions": (
        {"add": lambda w: w.add_causal_attention(False)},
        UnsupportedArchitecture,
        "attention.causal is false",
    ),
    "wrong shape": (
        {"tensors": {"blk.1.attn_v.weight": np.zeros((16, 64), np.float32)}},
        WeightsError,
        r"m.gguf: tensor 'layers.1.v.weight' has the shape \[16, 64\] .* \[32, 64\]",
    ),
    "factors of another size": (
        {"tensors": {"rope_freqs.weight": np.ones(4, np.float32)}},
        ModelFilesError,
        "rope_freqs.weight must hold 8 factors",
    ),
    "factors that are zero": (
        {"tensors": {"rope_freqs.weight": np.zeros(8, np.float32)}},
        ModelFilesError,
        "'rope_freqs.weight' holds factors that are not positive",
    ),
    "factors in a matrix": (
        {"tensors": {"rope_freqs.weight": np.ones((2, 4), np.float32)}},
        ModelFilesError,
        "'rope_freqs.weight' is f32 of shape .* a row of f32 factors",
    ),
    "unknown scaling": (
        {
            "add": lambda w: [
                w.add_string("llama.rope.scaling.type", "spiral"),
                w.add_rope_scaling_factor(2.0),
            ]
        },
        UnsupportedArchitecture,
        "rope.scaling.type 'spiral' without frequency factors is not supported",
    ),
    "heads that do not divide": (
        {
            "add": lambda w: w.add_array("llama.attention.head_count_kv", [3]),
            "drop_first": ("attention.head_count_kv",),
        },
        ModelFilesError,
        "head_count_kv is .3.; it must be a divisor of the 4 heads",
    ),
    "longrope without its factors": (
        {"add": lambda w: w.add_rope_scaling_type(gguf.RopeScalingType.LONGROPE)},
        UnsupportedArchitecture,
        "rope.scaling.type 'longrope' without frequency factors",
    ),
    "factors on top of yarn": (
        {
            "add": lambda w: [
                w.add_rope_scaling_type(gguf.RopeScalingType.YARN),
                w.add_rope_scaling_factor(4.0),
            ],
            "tensors": {"rope_freqs.weight": np.ones(8, np.float32)},
        },
        UnsupportedArchitecture,
        "rope.scaling.type 'yarn' with frequency factors",
    ),
    "half a rope": (
        {"add": lambda w: w.add_rope_dimension_count(8)},
        UnsupportedArchitecture,
        "rope.dimension_count 8 with heads of 16 is not supported",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_run_is_refused_with_its_place(
    case: str, llama: transformers.PreTrainedModel, tmp_path: Path, write_gguf: WriteGGUF
) -> None:
    changes, error, message = REFUSED[case]
    path = write_gguf(tmp_path / "m.gguf", llama, **changes)
    with pytest.raises(error, match=message):
        open_model(path)


def test_values_of_another_width_than_keys_are_refused(
    llama: transformers.PreTrainedModel, tmp_path: Path, write_gguf: WriteGGUF
) -> None:
    def change(writer: gguf.GGUFWriter) -> None:
        del writer.kv_data[0]["llama.attention.value_length"]
        writer.add_value_length(8)

    with pytest.raises(
        UnsupportedArchitecture, match=r"attention.key_length 16 with attention.value_length 8"
    ):
        open_model(write_gguf(tmp_path / "m.gguf", llama, add=change))
