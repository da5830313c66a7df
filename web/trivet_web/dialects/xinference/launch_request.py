"""The body that launches a model, and the deployment that it means."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from sqlalchemy.orm import Session

from trivet.adapters import spelled_adapters
from trivet.errors import ModelNotFound, RequestError, UnsupportedParameter
from trivet.models.model_files import ModelFiles
from trivet_registry.models_store import list_models
from trivet_registry.references import Chosen
from trivet_registry.tables import Version
from trivet_web.api.management.models import open_named, resolve_model
from trivet_web.web_process import WebProcess

_TASKS = {"LLM": "auto", "embedding": "embed", "rerank": "score"}
_FORMATS = {"pytorch": "safetensors", "ggufv2": "gguf"}  # theirs, and ours
# Engines of theirs: here each kind of hardware has one.
_ENGINES = ("vllm", "sglang", "transformers", "llama.cpp", "mlx", "lmdeploy", "sentence_transformers", "auto")
# What is not carried out, with the values that change nothing.
_UNSUPPORTED: Mapping[str, tuple[object, ...]] = {
    "request_limits": (),
    "worker_ip": (),
    "n_worker": (1,),
    "replica_config": ([], {}),
    "enable_thinking": (),
    "enable_virtual_env": (False,),
    "virtual_env_packages": ([],),
    "virtual_env_find_links": ([],),
    "envs": ({},),
    "multimodal_projector": (),
    "download_hub": (),
}
_OWN = frozenset(
    {
        *("model_uid", "model_name", "model_engine", "model_type", "model_size_in_billions", "model_format"),
        *("quantization", "replica", "n_gpu", "gpu_idx", "model_path", "trust_remote_code"),
        "peft_model_config",
    }
)


class LoraFields(msgspec.Struct, frozen=True, kw_only=True):
    """One adapter."""

    lora_name: str
    local_path: str


class PeftModelConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Adapters beside the model; of what else it may have, images are meant."""

    lora_list: list[LoraFields] | None = None
    image_lora_load_kwargs: dict[str, Any] | None = None
    image_lora_fuse_kwargs: dict[str, Any] | None = None

    def folders(self) -> dict[str, str]:
        """By name. Raises: RequestError, UnsupportedParameter."""
        if self.image_lora_load_kwargs or self.image_lora_fuse_kwargs:
            raise UnsupportedParameter(
                "peft_model_config has image_lora_load_kwargs or image_lora_fuse_kwargs; this version makes "
                "no images: leave them out",
                param="peft_model_config",
            )
        given = self.lora_list or []
        folders = {one.lora_name: one.local_path for one in given}
        if len(folders) < len(given):
            raise RequestError(
                "two adapters of peft_model_config.lora_list have one lora_name; give each its own",
                param="peft_model_config",
            )
        return folders


class LaunchFields(msgspec.Struct, kw_only=True):
    """What is read by name; other fields are engine settings."""

    model_name: str
    model_uid: str | None = None
    model_engine: str | None = None
    model_type: str | None = None
    model_size_in_billions: int | float | str | None = None  # the files have the size that they have
    model_format: str | None = None
    quantization: str | None = None
    replica: int | None = None
    n_gpu: int | str | None = None
    gpu_idx: int | list[int] | None = None
    model_path: str | None = None
    peft_model_config: PeftModelConfig | None = None

    @property
    def name(self) -> str:
        return self.model_uid or self.model_name

    @property
    def backend(self) -> str:
        engine = (self.model_engine or "auto").lower()
        return "auto" if engine in _ENGINES else engine

    @property
    def device(self) -> str | None:
        """Raises: UnsupportedParameter for several, which the supervisor chooses."""
        if isinstance(self.gpu_idx, list) and len(self.gpu_idx) > 1:
            raise UnsupportedParameter(
                f"gpu_idx is {self.gpu_idx}; several devices are chosen by the server: send n_gpu",
                param="gpu_idx",
            )
        chosen = self.gpu_idx[0] if isinstance(self.gpu_idx, list) and self.gpu_idx else self.gpu_idx
        return str(chosen) if isinstance(chosen, int) else None

    def settings(self, others: Mapping[str, Any]) -> dict[str, str]:
        """Of the engine. Raises: RequestError."""
        task = _TASKS.get(self.model_type or "LLM")
        if task is None:
            raise UnsupportedParameter(
                f"model_type is {self.model_type!r}; this version serves {', '.join(_TASKS)}",
                param="model_type",
            )
        settings = {name: _text(value) for name, value in others.items() if value is not None}
        if self.peft_model_config is not None and (adapters := self.peft_model_config.folders()):
            settings["adapters"] = spelled_adapters(adapters)
        if task != "auto":
            settings["task"] = task
        if isinstance(self.n_gpu, int) and self.n_gpu > 1:
            settings["tensor_parallel_size"] = str(self.n_gpu)
        return settings

    def files(self, process: WebProcess) -> ModelFiles | None:
        """Of a path. Raises: ModelFilesError; RequestError."""
        return open_named(process, self.model_path or self.model_name)

    def chosen(self, session: Session, files: ModelFiles | None) -> Chosen:
        """Of a path, or of the registry: "name:alias", "name:version", or the newest of what is named.

        Args: files: see `files`.

        Raises: ModelNotFound listing what there is.
        """
        if files is not None or self.model_path is not None or ":" in self.model_name:
            return resolve_model(session, self.model_path or self.model_name, files)
        found = [
            version
            for model in list_models(session)
            if model.name == self.model_name
            for version in model.versions
            if self._is_wanted(version)
        ]
        if found:
            return Chosen(max(found, key=lambda version: version.version))
        resolve_model(session, self.model_name, None)  # which says what is registered
        there = ", ".join(_described(m.versions) for m in list_models(session) if m.name == self.model_name)
        raise ModelNotFound(
            f"model {self.model_name!r} is not there as model_format {self.model_format!r}, quantization "
            f"{self.quantization!r}; there is: {there}",
            param="model_name",
        )

    def _is_wanted(self, version: Version) -> bool:
        wanted = self.model_format
        if wanted is not None and version.format != _FORMATS.get(wanted, wanted):
            return False
        kind = (self.quantization or "none").lower()
        return kind == "none" or (version.quantization or "").lower() == kind


def read_launch(given: Mapping[str, Any]) -> tuple[LaunchFields, dict[str, str]]:
    """What to launch, and the engine's settings. Raises: RequestError, UnsupportedParameter."""
    for name, neutral in _UNSUPPORTED.items():
        value = given.get(name)
        if value is not None and value not in neutral:
            raise UnsupportedParameter(
                f"{name} is {str(value)[:80]}; this version does not carry it out: leave it out", param=name
            )
    try:
        fields = msgspec.convert(given, LaunchFields)
    except msgspec.ValidationError as error:
        raise RequestError(f"the launch is wrong: {str(error).replace('`', '')}") from error
    others = {k: v for k, v in given.items() if k not in _OWN and k not in _UNSUPPORTED}
    return fields, fields.settings(others)


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _described(versions: Sequence[Version]) -> str:
    return ", ".join(f"{v.format} {v.quantization or 'none'}" for v in versions)
