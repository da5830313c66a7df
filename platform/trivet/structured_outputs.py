"""What form a completion must have: shared by the API, the wire and `LLM`. Names are vLLM's."""

from __future__ import annotations

from typing import Any

import msgspec

from trivet.errors import RequestError

INSTALL_COMMAND = "pip install 'trivet[structured]'"  # of what carries it out
MAX_JSON_BYTES = 1 << 20  # of a schema as text
MAX_GRAMMAR_BYTES = 64 << 10  # of a grammar or a regex
MAX_CHOICES = 4096
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

    def check(self) -> None:
        """Raises: RequestError naming the field, its value or size, and what would do."""
        given = [kind for kind in KINDS if getattr(self, kind) not in (None, False)]
        if self.json is False:
            given.append("json")
        if len(given) != 1:
            named = " and ".join(given) or "none of them"
            raise _wrong(f"give {named}; exactly one of {', '.join(KINDS)} is needed")
        self._check_size(given[0])

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
                raise _wrong(f"choice has {len(texts)} texts; give 1 to {MAX_CHOICES}, none of them empty")
            self._check_bytes(kind, sum(map(len, texts)), MAX_JSON_BYTES)
        elif kind == "json":
            self._check_bytes(kind, len(self.schema_text), MAX_JSON_BYTES)
        elif kind in ("regex", "grammar"):
            self._check_bytes(kind, len(getattr(self, kind)), MAX_GRAMMAR_BYTES)
        self._check_bytes("whitespace_pattern", len(self.whitespace_pattern or ""), MAX_GRAMMAR_BYTES)

    def _check_bytes(self, kind: str, size: int, limit: int) -> None:
        if size > limit:
            raise _wrong(f"{kind} has {size} characters; at most {limit} are taken")


def _wrong(text: str) -> RequestError:
    return RequestError(f"structured_outputs: {text}", param="structured_outputs")
