"""Renders chat messages into the prompt a model was trained on, by the Jinja template in its files.

The rules are those of transformers' `apply_chat_template`, the reference for every published template;
the sandbox is tighter (template_sandbox.py), and tighter yet for a template that a request brings.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from traceback import walk_tb
from typing import Any, NoReturn

import jinja2

from trivet.errors import ModelFilesError, RequestError
from trivet.text.chat_messages import normalize_messages, with_json_arguments
from trivet.text.template_limits import MAX_STEPS, Budget, check_text, check_widths
from trivet.text.template_sandbox import BUDGET, TemplateEnvironment

TemplateSource = str | Mapping[str, str] | Sequence[Mapping[str, str]]

# What goes wrong inside a template: its own refusals, and Python's errors of the operations in it.
_TEMPLATE_FAILURES = (
    jinja2.TemplateError,
    TypeError,
    ValueError,
    ArithmeticError,
    LookupError,
    AttributeError,
    RecursionError,
)
_FILE_NAME = "<template>"  # Jinja's name for a template from a string, in tracebacks

# Templates that ask whether the content is none; for the others null content becomes "".
_ASKS_FOR_NULL = re.compile(r"content['\"]?\]?\s+is\s+(?:not\s+)?none\b", re.IGNORECASE)

# Where the final message ends, for `continue_final_message`. Private-use characters: no model writes them.
# The space shows whether the template trims its messages.
_END_MARK = "\ue0fe\ue0ff "


class TemplateRefusal(jinja2.TemplateError):
    """`raise_exception(...)`: the template author's words about these messages."""


class ChatTemplate:
    """One model's template, compiled. Safe to share between threads.

    Args:
        source: the template; or named ones, as a mapping or as tokenizer_config.json lists them
            ("default", and "tool_use" for requests with tools); None: the model has none, and `render`
            says so.
        now: clock for templates that write the date.
        max_steps: of a rendering (template_limits.py).

    Raises: ModelFilesError naming the line, for a template that is no valid Jinja.
    """

    # What `render` gives to a template itself; a request's `chat_template_kwargs` must not.
    RESERVED = frozenset(
        {
            "messages",
            "tools",
            "documents",
            "add_generation_prompt",
            "continue_final_message",
            "bos_token",
            "eos_token",
            "raise_exception",
            "strftime_now",
            BUDGET,
        }
    )

    def __init__(
        self,
        source: TemplateSource | None,
        bos_token: str | None = None,
        eos_token: str | None = None,
        *,
        now: Callable[[], datetime] = datetime.now,
        max_steps: int = MAX_STEPS,
    ) -> None:
        environment = TemplateEnvironment()
        self._sources = _by_name(source)
        self._templates = {name: _compile(environment, text, name) for name, text in self._sources.items()}
        self._now = now
        self._max_steps = max_steps
        given = {"bos_token": bos_token, "eos_token": eos_token}
        self._tokens = {name: token for name, token in given.items() if token is not None}

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        /,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        *,
        documents: Sequence[Mapping[str, Any]] | None = None,
        continue_final_message: bool = False,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt, special tokens written out: encode it with `add_special_tokens=False`.

        Args:
            tools: JSON schemas as in the API; an empty list is none.
            add_generation_prompt: end with the header of the assistant's turn.
            continue_final_message: leave the last message open, so that the model goes on with it, in
                place of the header.
            variables: further ones of the template, such as `enable_thinking`; a mapping, for they come with
                requests under any name.

        Raises: RequestError in the template's own words, with param "messages".
        """
        name = self._choose(bool(tools))
        further = variables or {}
        if reserved := self.RESERVED & further.keys():
            raise RequestError(
                f"chat_template_kwargs must not set {', '.join(sorted(reserved))}; "
                "use the request's own fields",
                param="chat_template_kwargs",
            )
        asks_for_null = _ASKS_FOR_NULL.search(self._sources[name]) is not None
        plain = normalize_messages(messages, keeps_null_content=asks_for_null)
        if continue_final_message:
            plain[-1] = _left_open(plain[-1])
        given = {
            **self._tokens,
            **further,
            "tools": _objects(tools, "tools"),
            "documents": _objects(documents, "documents"),
            "add_generation_prompt": add_generation_prompt and not continue_final_message,
            "raise_exception": _raise_exception,
            "strftime_now": self._strftime_now,
        }
        text = self._render(self._templates[name], plain, given)
        return _cut_at_mark(text) if continue_final_message else text

    @property
    def source(self) -> str:
        """The text of all of it, to look for marks in."""
        return "\n".join(self._sources.values())

    def _choose(self, has_tools: bool) -> str:
        names = ["tool_use", "default"] if has_tools else ["default"]
        for name in [*names, *self._templates]:
            if name in self._templates:
                return name
        raise RequestError(
            "this model has no chat template; send a prompt in the model's own format to /v1/completions, "
            "or put a chat_template.jinja into the model's folder and launch it again",
            param="messages",
        )

    def _render(
        self, template: jinja2.Template, messages: list[dict[str, Any]], variables: dict[str, Any]
    ) -> str:
        parsed = with_json_arguments(messages)
        try:
            return _generate(template, {**variables, "messages": parsed}, self._max_steps)
        except TypeError as error:
            # A few templates (DeepSeek) concatenate the arguments of tool calls, which needs them as text.
            if parsed == messages:
                raise _failure(error) from error
        except _TEMPLATE_FAILURES as error:
            raise _failure(error) from error
        try:
            return _generate(template, {**variables, "messages": messages}, self._max_steps)
        except _TEMPLATE_FAILURES as error:
            raise _failure(error) from error

    def _strftime_now(self, pattern: str) -> str:
        check_widths(pattern)
        return self._now().strftime(pattern)


def _by_name(source: TemplateSource | None) -> dict[str, str]:
    if source is None:
        return {}
    if isinstance(source, str):
        return {"default": source}
    if isinstance(source, Mapping):
        return dict(source)
    try:
        return {entry["name"]: entry["template"] for entry in source}
    except (KeyError, TypeError) as error:
        raise ModelFilesError(
            "chat_template in tokenizer_config.json is a list whose entries lack name or template; "
            "fetch it again"
        ) from error


def _compile(environment: TemplateEnvironment, source: str, name: str) -> jinja2.Template:
    try:
        return environment.from_string(source)
    except jinja2.TemplateSyntaxError as error:
        raise ModelFilesError(
            f"the model's chat template ({name}) is no valid Jinja, line {error.lineno}: {error.message}; "
            "correct it, or fetch it again"
        ) from error
    except RecursionError as error:
        raise ModelFilesError(
            f"the model's chat template ({name}) is nested too deeply; fetch it again"
        ) from error


def _generate(template: jinja2.Template, variables: dict[str, Any], max_steps: int) -> str:
    pieces, length = [], 0
    for piece in template.generate({**variables, BUDGET: Budget(max_steps)}):
        length += len(piece)
        check_text(length)
        pieces.append(piece)
    return "".join(pieces)


def _failure(error: Exception) -> RequestError:
    if isinstance(error, TemplateRefusal):
        return RequestError(f"the model's chat template refuses the messages: {error}", param="messages")
    if isinstance(error, jinja2.exceptions.SecurityError):
        return RequestError(
            f"the model's chat template is stopped{_line_of(error)}: {error}; correct the template, or "
            "shorten the messages",
            param="messages",
        )
    return RequestError(
        f"the model's chat template fails{_line_of(error)} with these messages: {error}; "
        "give them the form that the template expects",
        param="messages",
    )


def _line_of(error: Exception) -> str:
    lines = [line for frame, line in walk_tb(error.__traceback__) if frame.f_code.co_filename == _FILE_NAME]
    return f" in line {lines[-1]}" if lines else ""


def _objects(values: object, param: str) -> list[dict[str, Any]] | None:
    """Tools or documents as the template sees them; these may come unchecked with a request's kwargs."""
    if not values:
        return None
    if not isinstance(values, Sequence) or not all(isinstance(value, Mapping) for value in values):
        raise RequestError(f"{param} is {str(values)[:80]!r}; it must be a list of objects", param=param)
    return [dict(value) for value in values]


def _raise_exception(message: object) -> NoReturn:
    raise TemplateRefusal(str(message))


def _left_open(message: dict[str, Any]) -> dict[str, Any]:
    if not message["content"]:
        raise RequestError(
            "continue_final_message needs text in the last message to go on with; it has none",
            param="messages",
        )
    return {**message, "content": message["content"] + _END_MARK}


def _cut_at_mark(text: str) -> str:
    end = text.rfind(_END_MARK.rstrip())
    if end < 0:
        raise RequestError(
            "the model's chat template does not write the last message, so it cannot be continued; "
            "leave continue_final_message out",
            param="continue_final_message",
        )
    return text[:end] if text.startswith(_END_MARK, end) else text[:end].rstrip()
