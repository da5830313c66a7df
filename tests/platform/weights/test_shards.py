"""Which files hold the weights: shards with their index, split GGUF files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from safetensors.numpy import save_file

from trivet.errors import ModelFilesError, WeightsError
from trivet.weights.shards import read_gguf_files, read_safetensors_folder

FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
WEIGHT_MAP = {"a": FIRST, "b": SECOND, "c": FIRST}


def save_index(folder: Path, weight_map: Any) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    for shard in (FIRST, SECOND):
        names = [name for name, place in WEIGHT_MAP.items() if place == shard]
        save_file({name: np.zeros(len(name) + 3, np.float32) for name in names}, tmp_path / shard)
    save_index(tmp_path, WEIGHT_MAP)
    return tmp_path


def test_tensors_of_all_shards_are_found_in_their_files(sharded: Path) -> None:
    found = read_safetensors_folder(sharded)
    assert {t.name: Path(t.file).name for t in found.tensors} == WEIGHT_MAP
    assert [file.name for file in found.files] == [FIRST, SECOND, "model.safetensors.index.json"]


def test_single_file_goes_before_an_index(sharded: Path) -> None:
    save_file({"whole": np.zeros(1, np.float32)}, sharded / "model.safetensors")
    assert [t.name for t in read_safetensors_folder(sharded).tensors] == ["whole"]


def test_missing_shard_is_named_with_a_tensor(sharded: Path) -> None:
    (sharded / SECOND).unlink()
    with pytest.raises(WeightsError, match=rf"{SECOND} is missing; .* 1 tensor, 'b' among them"):
        read_safetensors_folder(sharded)


def test_tensor_that_its_shard_lacks_is_named(sharded: Path) -> None:
    save_index(sharded, WEIGHT_MAP | {"d": SECOND})
    with pytest.raises(WeightsError, match=rf"{SECOND}: tensor 'd' is not in it"):
        read_safetensors_folder(sharded)


@pytest.mark.parametrize(
    "place", ["../secret.safetensors", "/etc/passwd", "sub/model.safetensors", "..", "", "a\\b", 5, None]
)
def test_index_that_names_a_file_outside_the_folder_is_refused(place: object, sharded: Path) -> None:
    save_index(sharded, {"a": place})
    with pytest.raises(ModelFilesError, match=r"tensor 'a' is said to be in .* the model's own folder"):
        read_safetensors_folder(sharded)


@pytest.mark.parametrize("weight_map", [None, {}, ["a"]])
def test_index_without_a_map_is_refused(weight_map: object, sharded: Path) -> None:
    save_index(sharded, weight_map)
    with pytest.raises(ModelFilesError, match="weight_map is missing or empty"):
        read_safetensors_folder(sharded)


def test_shard_behind_a_link_is_read(sharded: Path) -> None:
    store = sharded / "blobs"
    store.mkdir()
    (sharded / FIRST).rename(store / "0a1b")
    (sharded / FIRST).symlink_to(store / "0a1b")
    assert len(read_safetensors_folder(sharded).tensors) == 3


def test_pickles_are_not_read_and_the_error_says_why(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(ModelFilesError, match=r"pytorch_model.bin, a pickle, .* convert"):
        read_safetensors_folder(tmp_path)


def test_folder_without_weights_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ModelFilesError, match=r"neither model.safetensors nor"):
        read_safetensors_folder(tmp_path)


def write_gguf(path: Path, names: list[str], number: int = 0, count: int = 0, total: int = 0) -> None:
    writer = gguf.GGUFWriter(path, "llama")
    if count:
        writer.add_uint16("split.no", number)
        writer.add_uint16("split.count", count)
        writer.add_int32("split.tensors.count", total)
    for name in names:
        writer.add_tensor(name, np.zeros(4, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture
def split(tmp_path: Path) -> list[Path]:
    pieces = [tmp_path / f"m-{number:05}-of-00003.gguf" for number in (1, 2, 3)]
    for number, piece in enumerate(pieces):
        write_gguf(piece, [f"t{number}"], number, 3, 3)
    return pieces


@pytest.mark.parametrize("given", [0, 1, 2])
def test_any_piece_of_a_split_model_opens_all(given: int, split: list[Path]) -> None:
    header, found = read_gguf_files(split[given])
    assert header.metadata["split.no"] == 0
    assert [(t.name, t.file) for t in found.tensors] == [(f"t{i}", str(split[i])) for i in range(3)]
    assert found.files == tuple(split)


def test_missing_piece_is_named(split: list[Path]) -> None:
    split[1].unlink()
    with pytest.raises(
        WeightsError, match=r"m-00002-of-00003.gguf is missing and m-00003-of-00003.gguf needs it"
    ):
        read_gguf_files(split[2])


def test_piece_under_another_name_is_refused(split: list[Path]) -> None:
    renamed = split[0].with_name("renamed.gguf")
    split[0].rename(renamed)
    with pytest.raises(WeightsError, match="one of 3 pieces by its metadata and 1 by its name"):
        read_gguf_files(renamed)


def test_pieces_of_different_models_are_refused(split: list[Path]) -> None:
    split[2].unlink()
    write_gguf(split[2], ["x", "y"], 2, 3, 3)
    with pytest.raises(WeightsError, match="speaks of 3 tensors and its 3 pieces hold 4"):
        read_gguf_files(split[0])


def test_tensor_in_two_pieces_is_refused(split: list[Path]) -> None:
    split[2].unlink()
    write_gguf(split[2], ["t0"], 2, 3, 3)
    with pytest.raises(WeightsError, match="two pieces hold the same tensor"):
        read_gguf_files(split[0])


def test_impossible_piece_number_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelFilesError, match="named as piece 4 of 3"):
        read_gguf_files(tmp_path / "m-00004-of-00003.gguf")


def test_piece_count_is_not_believed_beyond_the_missing_piece(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m-00001-of-99999.gguf", ["a"])
    with pytest.raises(WeightsError, match=r"m-00002-of-99999.gguf is missing"):
        read_gguf_files(tmp_path / "m-00001-of-99999.gguf")
