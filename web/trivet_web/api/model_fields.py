"""The fields of a request that say which model, or which adapter (LoRA) of one, shall answer."""

from __future__ import annotations

import msgspec

from trivet_web.models.model_names import ModelName, meant_by, with_adapter


class AdapterFields(msgspec.Struct, kw_only=True):
    """Names of an adapter beside `model`, whose deployment has it."""

    lora_path: str | None = None  # SGLang's
    lora_name: str | None = None  # Xinference's

    def with_adapters(self, name: ModelName) -> ModelName:
        """What both name together. Raises: RequestError where they contradict each other."""
        for field in AdapterFields.__struct_fields__:
            name = with_adapter(name, getattr(self, field), field)
        return name


class ModelFields(AdapterFields, kw_only=True):
    """Of a request that is sent to an engine."""

    model: str

    @property
    def model_name(self) -> ModelName:
        """Raises: RequestError; ModelNotFound for an adapter that several models have."""
        return self.with_adapters(meant_by(self.model))
