"""Rotary settings in the metadata and the tensors of GGUF files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
import transformers

from trivet.models.model_files import open_model
from trivet.models.rope import inverse_frequencies
from trivet.models.spec import ModelSpec, Rope

SaveTiny = Callable[..., transformers.PreTrainedModel]
WriteGGUF = Callable[..., Path]
Add = Callable[[gguf.GGUFWriter], object]


@pytest.fixture
def llama(tmp_path: Path, save_tiny: SaveTiny) -> transformers.PreTrainedModel:
    return save_tiny(tmp_path / "llama", "llama")


def opened(path: Path) -> ModelSpec:
    spec = open_model(path).spec
    assert spec is not None
    return spec


def rope_of(spec: ModelSpec) -> Rope:
    rope = spec.kinds[0].attention.rope
    assert rope is not None
    return rope


ROPES: dict[str, tuple[Add, Rope]] = {
    "none": (lambda w: w.add_rope_scaling_type(gguf.RopeScalingType.NONE), Rope(16)),
    "linear": (
        lambda w: [w.add_rope_scaling_type(gguf.RopeScalingType.LINEAR), w.add_rope_scaling_factor(4.0)],
        Rope(16, scaling="linear", factor=4.0),
    ),
    "linear by its old key": (
        lambda w: w.add_float32("llama.rope.scale_linear", 4.0),
        Rope(16, scaling="linear", factor=4.0),
    ),
    "factor without a type is linear": (
        lambda w: w.add_rope_scaling_factor(4.0),
        Rope(16, scaling="linear", factor=4.0),
    ),
    "none, whatever the factor": (
        lambda w: [
            w.add_rope_scaling_type(gguf.RopeScalingType.NONE),
            w.add_float32("llama.rope.scale_linear", 4.0),
        ],
        Rope(16),
    ),
    "factor one": (
        lambda w: [w.add_rope_scaling_type(gguf.RopeScalingType.YARN), w.add_rope_scaling_factor(1.0)],
        Rope(16),
    ),
}


@pytest.mark.parametrize("case", ROPES)
def test_rope_scaling_of_the_metadata(
    case: str, llama: transformers.PreTrainedModel, tmp_path: Path, write_gguf: WriteGGUF
) -> None:
    add, expected = ROPES[case]
    assert rope_of(opened(write_gguf(tmp_path / "m.gguf", llama, add=add))) == expected


def test_yarn_equals_that_of_the_folder(tmp_path: Path, save_tiny: SaveTiny, write_gguf: WriteGGUF) -> None:
    settings = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "rope_theta": 1e6}
    model = save_tiny(tmp_path / "folder", "qwen2", rope_parameters=settings)

    def add(writer: gguf.GGUFWriter) -> None:
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(4.0)
        writer.add_rope_scaling_orig_ctx_len(64)

    file, folder = opened(write_gguf(tmp_path / "m.gguf", model, add=add)), opened(tmp_path / "folder")
    assert rope_of(file) == rope_of(folder)
    assert file.max_position == folder.max_position == 256


@pytest.mark.parametrize("kind", [None, gguf.RopeScalingType.NONE, gguf.RopeScalingType.LINEAR])
def test_llama3_factors_in_a_tensor_give_the_frequencies_of_the_folder(
    kind: gguf.RopeScalingType | None, tmp_path: Path, save_tiny: SaveTiny, write_gguf: WriteGGUF
) -> None:
    def add(writer: gguf.GGUFWriter) -> None:
        if kind is not None:
            writer.add_rope_scaling_type(kind)
            writer.add_rope_scaling_factor(1.0)

    settings = {
        "rope_type": "llama3",
        "rope_theta": 5e5,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }
    model = save_tiny(tmp_path / "folder", "llama", rope_parameters=settings)
    scaled, _ = inverse_frequencies(rope_of(opened(tmp_path / "folder")), 256)
    plain, _ = inverse_frequencies(Rope(16, 5e5), 256)
    tensors = {"rope_freqs.weight": plain / scaled}
    spec = opened(write_gguf(tmp_path / "m.gguf", model, add=add, tensors=tensors))
    for length in (16, 256):
        frequencies, factor = inverse_frequencies(rope_of(spec), length)
        np.testing.assert_allclose(frequencies, scaled, rtol=3e-7)
        assert factor == 1.0
    assert spec.max_position == 256


def test_long_and_short_factors_are_chosen_by_the_length(
    llama: transformers.PreTrainedModel, tmp_path: Path, write_gguf: WriteGGUF
) -> None:
    def add(writer: gguf.GGUFWriter) -> None:
        writer.add_rope_scaling_type(gguf.RopeScalingType.LONGROPE)
        writer.add_rope_scaling_orig_ctx_len(64)
        writer.add_rope_scaling_attn_factors(1.25)

    short, long = np.full(8, 2, np.float32), np.full(8, 4, np.float32)
    tensors = {"rope_factors_short.weight": short, "rope_factors_long.weight": long}
    rope = rope_of(opened(write_gguf(tmp_path / "m.gguf", llama, add=add, tensors=tensors)))
    assert (inverse_frequencies(rope, 64)[0][0], inverse_frequencies(rope, 65)[0][0]) == (0.5, 0.25)
    assert inverse_frequencies(rope, 64)[1] == 1.25
