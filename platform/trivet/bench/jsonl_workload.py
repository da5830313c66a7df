"""A workload from a file: lines of OpenAI's batch format, or plain prompts.

{"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": {"messages": [...]}}
{"prompt": "text or token ids", "max_tokens": 64}
{"messages": [{"role": "user", "content": "Hello"}]}
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from trivet.bench.prompts import Form, Prompt
from trivet.bench.workload import Turn, Workload
from trivet.errors import ConfigError, RequestError


class _Ask(msgspec.Struct):
    """The fields that are read; sampling is the benchmark's own, so that every line has the same."""

    prompt: str | list[int] | None = None
    messages: list[dict[str, object]] | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None


class _Line(_Ask):
    """A plain line, or one of a batch file, whose request is in `body`."""

    body: _Ask | None = None


def read_workload(file: Path, default_max_tokens: int, form: Form | None = None) -> Workload:
    """All lines, each a conversation of one turn.

    Args:
        form: what the endpoint takes: "chat" needs messages, anything else a prompt; None takes all.

    Raises: ConfigError where the file cannot be read or is empty; RequestError naming file and line.
    """
    try:
        raw = file.read_bytes()
    except OSError as error:
        raise ConfigError(f"--input {file}: {error.strerror}") from error
    turns = [
        (_turn(f"{file}, line {number}", text, default_max_tokens, form),)
        for number, text in enumerate(raw.splitlines(), start=1)
        if text.strip()
    ]
    if not turns:
        raise ConfigError(f"--input {file} has no lines; give one request a line")
    return Workload(tuple(turns))


def _turn(where: str, text: bytes, default_max_tokens: int, form: Form | None) -> Turn:
    try:
        line = msgspec.json.decode(text, type=_Line)
    except msgspec.MsgspecError as error:
        raise RequestError(f"{where}: {error}") from error
    ask = line.body or line
    if (ask.prompt is None) == (ask.messages is None):
        raise RequestError(f"{where}: give either 'prompt' or 'messages'")
    if form is not None and (form == "chat") != (ask.messages is not None):
        has, other = ("messages", "chat") if ask.messages is not None else ("a prompt", "completions")
        raise RequestError(f"{where} has {has}; measure it with --endpoint {other}")
    max_tokens = ask.max_completion_tokens or ask.max_tokens or default_max_tokens
    if ask.messages is not None:
        return Turn(Prompt(messages=tuple(ask.messages)), max_tokens)
    if isinstance(ask.prompt, str):
        return Turn(Prompt(text=ask.prompt), max_tokens)
    return Turn(Prompt(ids=tuple(ask.prompt or ())), max_tokens)
