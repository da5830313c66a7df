"""Whoever would give an adapter is told that there are none, and what would do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trivet.adapters import NO_ADAPTERS, refuse_adapter
from trivet.engine_settings import parse_engine_settings
from trivet.errors import ConfigError, ModelFilesError, UnsupportedArchitecture, UnsupportedParameter
from trivet.models.architectures.gguf_spec import gguf_architecture
from trivet.models.model_files import open_model


@pytest.mark.parametrize(
    ("name", "value"), [("enable_lora", "true"), ("lora_modules", "a=/a"), ("max_loras", "2")]
)
def test_a_setting_that_asks_for_adapters_is_refused(name: str, value: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_engine_settings({name: value})
    assert str(refused.value) == f"{name} is {value!r}; {NO_ADAPTERS}"


def test_a_setting_that_asks_for_none_changes_nothing() -> None:
    assert parse_engine_settings({"enable_lora": "False", "lora_modules": "none"}) == parse_engine_settings(
        {}
    )


def test_a_folder_of_an_adapter_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA"}))
    (tmp_path / "adapter_model.safetensors").write_bytes(b"")
    with pytest.raises(ModelFilesError, match="is an adapter, not a model; this version serves no adapters"):
        open_model(tmp_path)


def test_a_gguf_of_an_adapter_is_no_model() -> None:
    metadata = {"general.type": "adapter", "general.architecture": "llama", "adapter.type": "lora"}
    with pytest.raises(UnsupportedArchitecture, match=r"^a\.gguf is an adapter, not a model; this version"):
        gguf_architecture(metadata, "a.gguf")


def test_vllms_argument_is_there_for_none() -> None:
    refuse_adapter(None)
    with pytest.raises(UnsupportedParameter, match=r"^lora_request is sql; this version") as refused:
        refuse_adapter("sql")
    assert refused.value.param == "lora_request"
