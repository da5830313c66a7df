"""What Xinference's clients get back beside OpenAI's objects, as structs; field names are Xinference's."""

from __future__ import annotations

import msgspec

from trivet_web.error_objects import ErrorBody, ErrorObject


class LaunchedObject(msgspec.Struct, frozen=True):
    """Under this name it is asked."""

    model_uid: str


class ClusterAuth(msgspec.Struct, frozen=True):
    """Whether a client shall send its key."""

    auth: bool


class RegisteredModel(msgspec.Struct, frozen=True):
    """A model whose files are registered."""

    model_name: str
    is_builtin: bool


class ModelRegistration(msgspec.Struct, frozen=True):
    """One of them, with its versions."""

    model_name: str
    is_builtin: bool
    context_length: int
    model_specs: list[ModelSpecObject]


class ModelSpecObject(msgspec.Struct, frozen=True):
    """The files of one version."""

    model_uri: str
    model_format: str
    quantization: str
    version: int


def error_form(error: ErrorObject, status: int) -> tuple[ErrorBody, int]:
    """OpenAI's object, and its message where Xinference's clients look for it. The status stays."""
    return ErrorBody(error, error.message), status
