"""Adapters as settings and requests name them."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from trivet.adapters import LoRARequest, adapter_per_prompt, with_one_spelling
from trivet.engine_settings import parse_engine_settings
from trivet.errors import ConfigError, ModelFilesError, UnsupportedArchitecture, UnsupportedParameter
from trivet.models.architectures.gguf_spec import gguf_architecture
from trivet.models.model_files import open_model


@pytest.mark.parametrize(
    "spelt",
    [
        {"adapters": "sql=/a/sql,chat=/b"},
        {"adapters": '{"sql": "/a/sql", "chat": "/b"}'},
        {"lora_modules": "sql=/a/sql chat=/b", "enable_lora": "true"},
        {"lora_modules": '[{"name": "sql", "path": "/a/sql"}, {"name": "chat", "path": "/b"}]'},
    ],
)
def test_adapters_are_folders_by_name_in_our_spelling_and_in_vllms(spelt: dict[str, str]) -> None:
    settings = parse_engine_settings(spelt)
    assert settings.adapters == {"sql": "/a/sql", "chat": "/b"}
    assert parse_engine_settings(settings.to_text()) == settings


def test_a_folder_with_a_comma_or_a_space_survives_its_spelling() -> None:
    settings = parse_engine_settings({"adapters": '{"sql": "/my models/a,b=c"}', "max_loras": "3"})
    assert parse_engine_settings(settings.to_text()) == settings
    assert settings.adapters == {"sql": "/my models/a,b=c"}


@pytest.mark.parametrize(
    ("spelt", "told"),
    [
        ({"adapters": "sql"}, "adapters is 'sql'; write NAME=FOLDER"),
        ({"adapters": "a:b=/x"}, "adapters: an adapter's name is 'a:b'; use letters"),
        ({"adapters": "a=/x,a=/y"}, "two adapters have the name 'a'"),
        ({"adapters": "{"}, "which is no JSON"),
        ({"adapters": "[" * 100_000}, "which is no JSON"),
        ({"adapters": '{"a": "/x", "a": "/y"}'}, "two adapters have the name 'a'"),
        ({"adapters": "latest=/x"}, "name is 'latest', which is the model itself to clients of Ollama"),
        ({"lora_modules": '[["a", "/x"]]'}, 'lora_modules is \'[["a", "/x"]]\'; write {"NAME": "FOLDER"}'),
        ({"adapters": '{"a": 1}'}, 'write {"NAME": "FOLDER"}'),
        ({"adapters": "a=/x", "lora_modules": "b=/y"}, "are both given"),
        ({"adapters": "a=/x", "enable_lora": "false"}, "enable_lora is 'false' and adapters is given"),
        ({"enable_lora": "maybe"}, "enable_lora is 'maybe'; it must be true or false"),
        ({"adapters": "a=/x,b=/y", "max_loras": "1"}, "max_loras is 1 and 2 adapters are given"),
        ({"max_lora_rank": "9999"}, "max_lora_rank is 9999; it must be at most 512"),
        ({"max_loras": "0"}, "max_loras is 0; it must be at least 1"),
        ({"lora_dtype": "float32"}, "lora_dtype is 'float32'; adapters are computed in the model's dtype"),
        ({"enable_prompt_adapter": "true"}, "prompt adapters are not served"),
        ({"max_cpu_loras": "4"}, "max_cpu_loras is '4'; every adapter is kept on the device"),
    ],
)
def test_a_setting_of_adapters_that_cannot_be_meant_is_refused(spelt: dict[str, str], told: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(told)):
        parse_engine_settings(spelt)


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ({"lora_modules": "a=/x b=/y"}, {"adapters": "a=/x,b=/y"}),
        (
            {"lora_modules": '{"name": "n", "path": "/p"}', "dtype": "auto"},
            {"adapters": "n=/p", "dtype": "auto"},
        ),
        ({"adapters": '[{"name": "n", "path": "/a b"}]'}, {"adapters": '{"n": "/a b"}'}),
        ({"lora_modules": "none", "adapters": "a=/x"}, {"adapters": "a=/x"}),
        ({"lora_modules": None}, {"adapters": None}),
        ({"dtype": None}, {"dtype": None}),
    ],
)
def test_settings_are_kept_with_adapters_under_one_name_in_one_spelling(
    given: dict[str, str | None], kept: dict[str, str | None]
) -> None:
    assert with_one_spelling(given) == kept


def test_settings_that_ask_for_none_change_nothing() -> None:
    none = {"enable_lora": "False", "lora_modules": "none", "lora_dtype": "auto", "max_cpu_loras": "none"}
    assert parse_engine_settings(none) == parse_engine_settings({})


def test_enabled_without_any_is_one_free_slot_as_in_vllm() -> None:
    assert parse_engine_settings({"enable_lora": "true"}).max_loras == 1
    assert parse_engine_settings({"enable_lora": "true", "max_loras": "4"}).max_loras == 4


def test_a_folder_of_an_adapter_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA"}))
    (tmp_path / "adapter_model.safetensors").write_bytes(b"")
    with pytest.raises(ModelFilesError, match=r"is an adapter .*: launch the model .* --set adapters=NAME=/"):
        open_model(tmp_path)


def test_a_gguf_of_an_adapter_is_no_model() -> None:
    metadata = {"general.type": "adapter", "general.architecture": "llama", "adapter.type": "lora"}
    with pytest.raises(UnsupportedArchitecture, match=r"^a\.gguf is an adapter .* adapters=NAME=a\.gguf$"):
        gguf_architecture(metadata, "a.gguf")


@dataclass
class VllmsOwn:
    lora_name: str
    lora_int_id: int
    lora_path: str


def test_a_request_names_an_adapter_by_a_word_or_by_vllms_object() -> None:
    assert adapter_per_prompt(None, 2) == [None, None]
    assert adapter_per_prompt("sql", 1) == [LoRARequest("sql")]
    assert adapter_per_prompt([LoRARequest("a", 1, "/a"), ""], 2) == [LoRARequest("a", 1, "/a"), None]
    (told,) = adapter_per_prompt(VllmsOwn("sql", 7, "/sql"), 1)
    assert told is not None
    assert (told.name, told.path) == ("sql", "/sql")
    with pytest.raises(UnsupportedParameter, match=r"^lora_request is 3; give the name") as refused:
        adapter_per_prompt(3, 1)
    assert refused.value.param == "lora_request"
