"""Which tokens may come next, where a completion must have a form: a JSON Schema, a regex, a grammar.

By llguidance (1.9, MIT), compared with xgrammar (0.2.9, Apache-2.0) on 49,152 tokens: it needs no other
package where xgrammar imports torch and triton (ready in 0.12 s and 79 MB, against 1.7 s and 293 MB), a
schema of 200 fields takes 5 ms against 133, and all its work for a token is bounded: no regex stalls a step.
(A mask of JSON takes 10 to 30 us where xgrammar's takes 2 to 8; of a counted class as in [a-z ]{300}, 300.)
Compiling is not: what a stranger sends is tried in another process before (`grammar_trial`).
"""

from __future__ import annotations

import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
import numpy as np

from trivet.engine.json_schema_fault import find_fault
from trivet.engine.packed_mask import packed_mask
from trivet.errors import RequestError, UnsupportedParameter
from trivet.structured_outputs import INSTALL_COMMAND, StructuredOutputsParams

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

    from trivet.contract import UInt32

MAX_TOKEN_S = 0.05  # of processor time: 5 times the most that any useful grammar took
MAX_CACHED = 64  # grammars that are kept compiled
MAX_CACHED_BYTES = 4 << 20  # of their texts; one of 1 MB takes 20 MB when it is compiled
MAX_REASON_CHARACTERS = 300
# A space, or a new line and its indentation: what models write. Any amount would let a small one write
# blanks until its tokens are used up.
WHITESPACE = r"(?: |\n[ \t]{0,32})?"


class Grammar:
    """Where one completion stands in its grammar. One thread uses it."""

    def __init__(
        self, matcher: LLMatcher, ends: UInt32, begins_after: int | None = None, before: UInt32 | None = None
    ) -> None:
        self._matcher = matcher
        self._ends = ends  # the mask of the end tokens
        self._begins_after = begins_after  # None: it has begun
        self._before = before  # the mask until then
        self.too_slow = ""  # why, in words; for good

    @property
    def is_over(self) -> bool:
        """Nothing can follow but an end token."""
        return self._begins_after is None and self._matcher.is_stopped()

    @property
    def error(self) -> str:
        """Why it cannot go on: its work for one token exceeds the limits; empty while it can."""
        return self.too_slow or _first_line(self._matcher.get_error())

    def advance(self, token_id: int) -> None:
        """Take the token that was drawn."""
        if self._begins_after is not None:
            self._begins_after = None if token_id == self._begins_after else self._begins_after
            return
        begun_s = time.thread_time()
        self._matcher.consume_token(token_id)
        self._check_time(time.thread_time() - begun_s)

    def fill_mask(self, row: UInt32) -> None:
        """Write what may come next into [ceil(V / 32)]; nothing may where the grammar is in error."""
        if self._begins_after is not None and self._before is not None:
            row[:] = self._before
            return
        begun_s = time.thread_time()
        self._matcher.unsafe_compute_mask_ptr(row.ctypes.data, row.nbytes)
        self._check_time(time.thread_time() - begun_s)
        if self.too_slow or self._matcher.is_error():
            row[:] = 0

    def forbid_end(self, row: UInt32) -> None:
        """Take the end tokens out of a mask, where it has others."""
        others = row & ~self._ends
        if others.any():
            row[:] = others

    def _check_time(self, taken_s: float) -> None:
        """An ambiguous grammar takes longer with each token, past all of the library's own limits."""
        if taken_s > MAX_TOKEN_S:
            self.too_slow = (
                f"it takes {taken_s * 1000:.0f} ms for a token and {MAX_TOKEN_S * 1000:.0f} are allowed; "
                "make it smaller, or less ambiguous"
            )


class TokenTable(Protocol):
    """What a grammar needs of a tokenizer."""

    @property
    def token_bytes(self) -> ByteTable:
        """The bytes of each token."""

    @property
    def special_ids(self) -> frozenset[int]:
        """Tokens that are no text."""

    def encode(self, text: str, add_special_tokens: bool, parse_special_tokens: bool) -> list[int]:
        """Ids of a text."""


class ByteTable(Protocol):
    """Bytes by token id."""

    def __getitem__(self, token_id: int, /) -> bytes: ...


class GrammarCompiler:
    """Grammars over one tokenizer. Any thread may compile; the library is loaded on the first call."""

    def __init__(self, tokens: TokenTable, num_tokens: int, end_ids: Sequence[int]) -> None:
        """Args: num_tokens: the contract's V; end_ids: allowed where a grammar may end."""
        self.tokens = tokens
        self.num_tokens = num_tokens
        self.end_ids = [token_id for token_id in end_ids if token_id < num_tokens]
        self._ends = packed_mask(self.end_ids, num_tokens)
        self._loading = threading.Lock()
        self._vocabulary: LLTokenizer | None = None
        self._lock = threading.Lock()  # of what is below
        self._cache: OrderedDict[bytes, LLMatcher] = OrderedDict()

    def compile(self, params: StructuredOutputsParams) -> Grammar:
        """A grammar at its start.

        Raises: UnsupportedParameter where the library is missing; RequestError naming the part at fault.
        """
        known = self.cached(params)
        if known is not None:
            return known
        vocabulary = self._load(params)
        matcher = _compiled(params, vocabulary)
        self._refuse_if_empty(params, matcher)
        with self._lock:
            self._cache[_key_of(params)] = matcher
            while len(self._cache) > MAX_CACHED or sum(map(len, self._cache)) > MAX_CACHED_BYTES:
                self._cache.popitem(last=False)
        return self._at_start(matcher, params)

    def cached(self, params: StructuredOutputsParams) -> Grammar | None:
        """One that was compiled before, at its start. Waits for nobody else's compilation."""
        key = _key_of(params)
        with self._lock:
            matcher = self._cache.get(key)
            if matcher is None:
                return None
            self._cache.move_to_end(key)
            return self._at_start(matcher, params)

    @cached_property
    def _before(self) -> UInt32:
        """All but the end tokens: a completion cannot end before its form has begun."""
        return packed_mask(range(self.num_tokens), self.num_tokens) & ~self._ends

    def _at_start(self, matcher: LLMatcher, params: StructuredOutputsParams) -> Grammar:
        before = None if params.begins_after is None else self._before
        return Grammar(matcher.deep_copy(), self._ends, params.begins_after, before)

    def _load(self, params: StructuredOutputsParams) -> LLTokenizer:
        with self._loading:
            if self._vocabulary is None:
                try:
                    from llguidance import LLTokenizer, TokenizerWrapper
                except ImportError:
                    raise UnsupportedParameter(
                        f"to force a form ({params.field}) the server needs the package llguidance, which it "
                        f"does not have; install it there: {INSTALL_COMMAND}",
                        param=params.field,
                    ) from None
                wrapped = TokenizerWrapper(_Vocabulary(self.tokens, self.num_tokens, self.end_ids))
                self._vocabulary = LLTokenizer(wrapped, self.num_tokens, self.end_ids or None)
            return self._vocabulary

    def _refuse_if_empty(self, params: StructuredOutputsParams, matcher: LLMatcher) -> None:
        """Raises: RequestError where no token can be the first."""
        row = np.zeros(-(-self.num_tokens // 32), np.uint32)
        grammar = Grammar(matcher.deep_copy(), self._ends)
        grammar.fill_mask(row)
        if grammar.too_slow:
            raise params.refused(f"cannot be carried out: {grammar.too_slow}")
        if not row.any():
            raise params.refused("matches no text that the model can write; allow at least one")


class _Vocabulary:
    """A tokenizer as llguidance wants it: the bytes of each token, the special ones, a way to encode."""

    def __init__(self, tokens: TokenTable, num_tokens: int, end_ids: Sequence[int]) -> None:
        self._encode = tokens.encode
        self.eos_token_id = end_ids[0] if end_ids else max(tokens.special_ids, default=0)
        self.bos_token_id = None
        self.tokens = [tokens.token_bytes[token_id] for token_id in range(num_tokens)]
        self.special_token_ids = sorted({*tokens.special_ids, *end_ids})

    def __call__(self, text: bytes | str) -> list[int]:
        text = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
        return self._encode(text, add_special_tokens=False, parse_special_tokens=False)


def _key_of(params: StructuredOutputsParams) -> bytes:
    """The same for the same form, whichever field has brought it."""
    return msgspec.json.encode(msgspec.structs.replace(params, sent_as="", begins_after=None))


def _compiled(params: StructuredOutputsParams, tokenizer: LLTokenizer) -> LLMatcher:
    """Raises: RequestError."""
    from llguidance import LLMatcher

    if params.json is not None or params.json_object:
        return _of_schema(params, tokenizer)
    matcher = LLMatcher(tokenizer, _grammar_text(params), log_level=0, limits=_limits())
    if matcher.is_error():
        raise params.refused(f"cannot be carried out: {_reason(matcher.get_error())}")
    return matcher


def _grammar_text(params: StructuredOutputsParams) -> str:
    """Raises: RequestError for EBNF that is none."""
    from llguidance import LLMatcher, grammar_from, regex_to_lark

    if params.choice is not None:
        return LLMatcher.grammar_from_regex("|".join(map(_literal, params.choice)))
    if params.regex is not None:  # \d, \w and \s are ASCII, as in JSON Schema: no digits of other scripts
        return LLMatcher.grammar_from_lark(f"start: /{regex_to_lark(params.regex, use_ascii='dws')}/")
    assert params.grammar is not None, "checked: one kind is given"
    if "::=" not in params.grammar:
        return LLMatcher.grammar_from_lark(params.grammar)
    try:
        return grammar_from("gbnf", params.grammar)
    except ValueError as error:
        reason = str(error).removeprefix("Failed to convert the grammar from GBNF to Lark: ")
        raise params.refused(f"is no EBNF: {_reason(reason)}") from None


def _of_schema(params: StructuredOutputsParams, tokenizer: LLTokenizer) -> LLMatcher:
    """Raises: RequestError with the JSON pointer of the part at fault."""
    from llguidance import LLMatcher

    try:
        schema = msgspec.json.decode(params.schema_text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise params.refused(f"is no valid JSON: {_reason(str(error))}") from None
    if not isinstance(schema, dict | bool):
        raise params.refused(f"is a JSON {type(schema).__name__}; a schema is an object, true or false")
    options = _json_options(params)

    def matcher_of(part: object) -> LLMatcher:
        part = part if isinstance(part, dict) else {"allOf": [part]}  # options need an object
        text = msgspec.json.encode(part).decode()
        try:
            grammar = (
                LLMatcher.grammar_from_lark(_json_unless(params.unless, part, options))
                if params.unless
                else LLMatcher.grammar_from_json_schema(text, overrides=options)
            )
        except ValueError as error:  # nested too deeply, a number that is too large: its own reader's limits
            raise params.refused(f"cannot be read as a JSON Schema: {_reason(str(error))}") from None
        return LLMatcher(tokenizer, grammar, log_level=0, limits=_limits())

    matcher = matcher_of(schema)
    if matcher.is_error() and params.unless:
        _of_schema(msgspec.structs.replace(params, unless=""), tokenizer)  # tells the place that is at fault
        raise params.refused(f"cannot be carried out beside calls: {_reason(matcher.get_error())}")
    if matcher.is_error():
        blanks = matcher_of({}).get_error() if params.whitespace_pattern is not None else ""
        if blanks:
            name = params.whitespace_field
            raise RequestError(f"{name} cannot be carried out: {_reason(blanks)}", param=name)
        fault = find_fault(schema, _error_of(matcher_of))
        raise params.refused(f"cannot be carried out at {fault.pointer}: {_reason(fault.reason)}")
    return matcher


def _json_unless(begin: str, schema: dict[str, Any], options: Any) -> str:
    """In Lark: JSON by the schema, or any text that begins with `begin`."""
    text = msgspec.json.encode({**schema, "x-guidance": options}).decode()
    return f"start: json | free\njson: %json {text}\nfree: /{_literal(begin)}(.|\\n)*/\n"


def _error_of(matcher_of: Callable[[object], LLMatcher]) -> Callable[[object], str]:
    return lambda part: matcher_of(part).get_error()


def _json_options(params: StructuredOutputsParams) -> Any:
    """All of them, because a schema could set those that are left out ("x-guidance")."""
    pattern = params.whitespace_pattern or WHITESPACE
    return {
        "item_separator": ",",
        "key_separator": ":",
        "whitespace_flexible": not params.disable_any_whitespace,
        "whitespace_pattern": None if params.disable_any_whitespace else pattern,
        "coerce_one_of": False,
        "lenient": False,
    }


def _limits() -> Any:
    """The library's own, which hold for any regex; errors without the grammar in them."""
    from llguidance import LLParserLimits

    return LLParserLimits(verbose_errors=False)


def _literal(text: str) -> str:
    """A regex that matches this text only."""
    return re.sub(r"[^0-9A-Za-z\s\x80-\U0010ffff_<>]", lambda found: "\\" + found[0], text)


def _reason(text: str) -> str:
    """The library's words on one line, cut where they go on for long."""
    text = re.sub(r"^Unimplemented keys: \[(.*)\]", r"not supported: the keyword \1", text)
    line = " ".join(text.replace("<non-verbose/>", "").split())
    return line if len(line) <= MAX_REASON_CHARACTERS else line[:MAX_REASON_CHARACTERS] + "..."


def _first_line(text: str) -> str:
    return text.partition("\n")[0]
