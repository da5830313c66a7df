"""What form a completion must have: shared by the API, the wire and `LLM`. Names are vLLM's."""

from __future__ import annotations

from typing import Any

import msgspec

from trivet.errors import RequestError

INSTALL_COMMAND = "pip install 'trivet[structured]'"  # of what carries it out
MAX_JSON_BYTES = 1 << 20  # of a schema as text
MAX_GRAMMAR_BYTES = 64 << 10  # of a grammar or a regex
MAX_CHOICES = 4096
_OURS = ("begins_after", "unless")  # fields that no request has
KINDS = ("json", "regex", "choice", "grammar", "json_object")


class StructuredOutputsParams(msgspec.Struct, frozen=True, kw_only=True):
    """Exactly one of the first five is given."""

    json: str | dict[str, Any] | bool | None = None  # a JSON Schema, as an object or as text
    regex: str | None = None  # of the whole completion
    choice: list[str] | None = None  # texts, of which it is one
    grammar: str | None = None  # EBNF ("root ::= ...") or Lark ("start: ...")
    json_object: bool | None = None  # any JSON object
    disable_any_whitespace: bool = False  # JSON without any space outside its strings
    whitespace_pattern: str | None = None  # regex of what may stand between the parts of JSON
    begins_after: int | None = None  # a token id: what comes up to it, as a model's thinking, is free
    unless: str = ""  # with JSON: a completion that begins with this is free, as a call of a tool
    sent_as: str = ""  # the field of an API request that has the form, where it is not the one of vLLM

    @classmethod
    def of(cls, fields: dict[str, Any]) -> StructuredOutputsParams:
        """From a dict, as the API takes it. Raises: RequestError."""
        unknown = [name for name in fields if name not in cls.__struct_fields__ or name in _OURS]
        if unknown:
            raise RequestError(
                f"structured_outputs has no field {unknown[0]!r}; its fields are {', '.join(KINDS)}, "
                "disable_any_whitespace and whitespace_pattern",
                param="structured_outputs",
            )
        try:
            return msgspec.convert(fields, cls)
        except msgspec.ValidationError as error:
            raise RequestError(f"structured_outputs: {error}", param="structured_outputs") from None

    def check(self) -> None:
        """Raises: RequestError naming the field, its value or size, and what would do."""
        given = self._given
        if len(given) != 1:
            named = " and ".join(given) or "none of them"
            raise RequestError(
                f"structured_outputs has {named}; exactly one of {', '.join(KINDS)} is needed",
                param="structured_outputs",
            )
        self._check_size(given[0])

    @property
    def field(self) -> str:
        """What an error names, as the client wrote it."""
        return self.sent_as or ".".join(("structured_outputs", *self._given[:1]))

    @property
    def whitespace_field(self) -> str:
        """The same of `whitespace_pattern`."""
        prefix = "guided_" if self.sent_as.startswith("guided_") else "structured_outputs."
        return f"{prefix}whitespace_pattern"

    def refused(self, text: str) -> RequestError:
        """Of the form: `text` goes on after its name."""
        return RequestError(f"{self.field} {text}", param=self.field)

    @property
    def _given(self) -> list[str]:
        given = [kind for kind in KINDS if getattr(self, kind) not in (None, False)]
        return ["json", *given] if self.json is False else given

    @property
    def schema_text(self) -> str:
        """The JSON Schema as text."""
        if self.json_object:
            return '{"type": "object"}'
        return self.json if isinstance(self.json, str) else msgspec.json.encode(self.json).decode()

    def _check_size(self, kind: str) -> None:
        if kind == "choice":
            texts = self.choice or ()
            if not 1 <= len(texts) <= MAX_CHOICES or not all(texts):
                raise self.refused(f"has {len(texts)} texts; give 1 to {MAX_CHOICES}, none of them empty")
            _check_bytes(self.field, sum(map(len, texts)), MAX_JSON_BYTES)
        elif kind == "json":
            _check_bytes(self.field, len(self.schema_text), MAX_JSON_BYTES)
        elif kind in ("regex", "grammar"):
            _check_bytes(self.field, len(getattr(self, kind)), MAX_GRAMMAR_BYTES)
        _check_bytes(self.whitespace_field, len(self.whitespace_pattern or ""), MAX_GRAMMAR_BYTES)


def _check_bytes(field: str, size: int, limit: int) -> None:
    """Raises: RequestError."""
    if size > limit:
        raise RequestError(f"{field} has {size} characters; at most {limit} are taken", param=field)
