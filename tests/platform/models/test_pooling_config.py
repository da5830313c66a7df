"""What sentence-transformers' files and GGUF's key say about pooling."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from trivet.errors import ModelFilesError
from trivet.models.description import ModelFiles
from trivet.models.pooling_config import model_pooling
from trivet.weights.index import WeightIndex

TRANSFORMER, POOLING, NORMALIZE, DENSE = (
    {"path": path, "type": f"sentence_transformers.models.{kind}"}
    for path, kind in (
        ("", "Transformer"),
        ("1_Pooling", "Pooling"),
        ("2_Normalize", "Normalize"),
        ("2_Dense", "Dense"),
    )
)


def files_of(path: Path, kind: str = "safetensors", config: dict[str, Any] | None = None) -> ModelFiles:
    return ModelFiles(
        path=path,
        format=kind,
        name="m",
        architecture="Qwen3ForCausalLM",
        spec=None,
        weights=WeightIndex(()),
        quantization="bf16",
        context_length=64,
        eos_token_ids=(),
        bos_token_id=None,
        chat_templates={},
        generation_defaults={},
        files=(),
        size_bytes=0,
        licence=None,
        config=config or {},
    )


def write(folder: Path, modules: Any, pooling: Any = None) -> ModelFiles:
    (folder / "modules.json").write_text(json.dumps(modules))
    if pooling is not None:
        (folder / "1_Pooling").mkdir()
        (folder / "1_Pooling/config.json").write_text(json.dumps(pooling))
    return files_of(folder)


def switches(*names: str) -> dict[str, Any]:
    known = ("cls_token", "mean_tokens", "max_tokens", "lasttoken")
    return {f"pooling_mode_{name}": name in names for name in known} | {"word_embedding_dimension": 64}


def test_files_that_say_nothing_give_none(tmp_path: Path) -> None:
    assert model_pooling(files_of(tmp_path)) is None
    assert model_pooling(write(tmp_path, [TRANSFORMER, NORMALIZE])) is None


@pytest.mark.parametrize(
    ("pooling", "mode"),
    [
        (switches("lasttoken"), "last"),
        (switches("mean_tokens"), "mean"),
        ({"pooling_mode": "lasttoken"}, "last"),
        ({"pooling_mode": "mean", "embedding_dimension": 64}, "mean"),
    ],
)
def test_the_pooling_module_says_it(tmp_path: Path, pooling: dict[str, Any], mode: str) -> None:
    assert model_pooling(write(tmp_path, [TRANSFORMER, POOLING, NORMALIZE], pooling)) == mode


@pytest.mark.parametrize(
    ("names", "shown"),
    [
        (("cls_token",), "cls_token"),
        (("mean_tokens", "max_tokens"), r"mean_tokens \+ max_tokens"),
        ((), "none"),
    ],
)
def test_another_pooling_is_refused_by_name(tmp_path: Path, names: tuple[str, ...], shown: str) -> None:
    files = write(tmp_path, [TRANSFORMER, POOLING], switches(*names))
    with pytest.raises(ModelFilesError, match=rf"'{shown}'.*name pooling 'last' or 'mean'"):
        model_pooling(files)


def test_a_module_behind_the_pooling_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ModelFilesError, match=r"module 'Dense', which this version does not carry out"):
        model_pooling(write(tmp_path, [TRANSFORMER, POOLING, DENSE], switches("lasttoken")))


@pytest.mark.parametrize("content", ["[", "{}", "[1]"])
def test_a_broken_list_of_modules_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "modules.json").write_text(content)
    with pytest.raises(ModelFilesError, match=r"modules\.json"):
        model_pooling(files_of(tmp_path))


@pytest.mark.parametrize(("kind", "mode"), [(None, None), (0, None), (1, "mean"), (3, "last")])
def test_gguf_says_it_by_number(tmp_path: Path, kind: int | None, mode: str | None) -> None:
    config = {"general.architecture": "qwen3"} | ({} if kind is None else {"qwen3.pooling_type": kind})
    assert model_pooling(files_of(tmp_path / "m.gguf", "gguf", config)) == mode


def test_gguf_of_another_pooling_is_refused(tmp_path: Path) -> None:
    config = {"general.architecture": "qwen3", "qwen3.pooling_type": 4}
    with pytest.raises(ModelFilesError, match="'rank'"):
        model_pooling(files_of(tmp_path / "m.gguf", "gguf", config))
