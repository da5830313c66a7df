"""The fields that ask for a form of the completion: OpenAI's, vLLM's, and vLLM's older ones."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from trivet.errors import RequestError, UnsupportedParameter
from trivet.structured_outputs import StructuredOutputsParams
from trivet_web.api.model_fields import ModelFields


class JsonSchemaFormat(msgspec.Struct, frozen=True, kw_only=True):
    """OpenAI's. `strict` changes nothing: the schema is always kept to."""

    name: str | None = None
    schema: dict[str, Any] | bool | None = None
    strict: bool | None = None


class ResponseFormat(msgspec.Struct, frozen=True, kw_only=True):
    """OpenAI's `response_format`."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaFormat | None = None


class StructuredOutputs(msgspec.Struct, frozen=True, kw_only=True):
    """vLLM's `structured_outputs`."""

    json: str | dict[str, Any] | bool | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: Any = None
    disable_any_whitespace: bool | None = None
    whitespace_pattern: str | None = None


class StructuredFields(ModelFields, kw_only=True):
    """Any one of them."""

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: str | dict[str, Any] | bool | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    guided_whitespace_pattern: str | None = None

    def structured_outputs_params(self) -> StructuredOutputsParams | None:
        """None where no form is asked for.

        Raises: RequestError for two forms, or for a field that is wrong; UnsupportedParameter.
        """
        forms = (self._of_response_format(), self._of_structured_outputs(), self._of_guided())
        given = [form for form in forms if form is not None]
        if len(given) > 1:
            first, second, *_ = (form.field.partition(".")[0] for form in given)
            raise RequestError(f"{first} and {second} both ask for a form; send one of them", param=second)
        for form in given:
            form.check()
            # As text, which the engine's loop passes on as it is; a deep schema is no depth of the message.
            return form if form.json is None else msgspec.structs.replace(form, json=form.schema_text)
        return None

    def _of_response_format(self) -> StructuredOutputsParams | None:
        wanted = self.response_format
        if wanted is None or wanted.type == "text":
            return None
        if wanted.type == "json_object":
            return StructuredOutputsParams(json_object=True, sent_as="response_format")
        schema = None if wanted.json_schema is None else wanted.json_schema.schema
        if schema is None:
            raise RequestError(
                'response_format of type json_schema has no json_schema.schema; send {"type": "json_schema", '
                '"json_schema": {"name": ..., "schema": {...}}}',
                param="response_format.json_schema.schema",
            )
        return StructuredOutputsParams(json=schema, sent_as="response_format.json_schema.schema")

    def _of_structured_outputs(self) -> StructuredOutputsParams | None:
        wanted = self.structured_outputs
        if wanted is None:
            return None
        if wanted.structural_tag is not None:
            raise UnsupportedParameter(
                "structured_outputs.structural_tag is not carried out; use json, regex, choice or grammar",
                param="structured_outputs.structural_tag",
            )
        return StructuredOutputsParams(
            json=wanted.json,
            regex=wanted.regex,
            choice=wanted.choice,
            grammar=wanted.grammar,
            json_object=wanted.json_object,
            disable_any_whitespace=bool(wanted.disable_any_whitespace),
            whitespace_pattern=wanted.whitespace_pattern,
        )

    def _of_guided(self) -> StructuredOutputsParams | None:
        kinds = {
            "json": self.guided_json,
            "regex": self.guided_regex,
            "choice": self.guided_choice,
            "grammar": self.guided_grammar,
        }
        given = [f"guided_{kind}" for kind, value in kinds.items() if value is not None]
        if not given:
            return None
        if len(given) > 1:
            first, second, *_ = given
            raise RequestError(f"{first} and {second} both ask for a form; send one of them", param=second)
        return StructuredOutputsParams(
            **kinds,  # type: ignore[arg-type]
            whitespace_pattern=self.guided_whitespace_pattern,
            sent_as=given[0],
        )
