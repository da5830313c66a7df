"""`trivet chat`: talk to a model that is being served."""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from trivet.commands.connecting import add_server_options, connect
from trivet.commands.output import add_json_option, note, print_json, shown_on
from trivet.errors import ModelNotFound, TrivetError, Unavailable
from trivet.plugins import Command

if TYPE_CHECKING:
    from trivet.client import ChatFields, ChatMessage, Client


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", nargs="?", help="a deployment (default: the only one)")
    parser.add_argument(
        "-m",
        "--message",
        "--prompt",
        dest="message",
        metavar="T",
        help="send this and print the answer, instead of a conversation",
    )
    parser.add_argument("--system", help="the system message")
    parser.add_argument("--temperature", type=float, help="0 = always the likeliest token")
    parser.add_argument("--top-p", type=float)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--max-tokens", type=int, help="length of an answer (default: up to the context)")
    add_json_option(parser)
    add_server_options(parser)


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer and how fast it came."""

    text: str
    finish_reason: str | None
    ttft_ms: float | None  # None where no token came
    tokens_per_s: float | None  # after the first; None below two tokens
    prompt_tokens: int
    completion_tokens: int


def _run(given: argparse.Namespace) -> int:
    wanted = {name: getattr(given, name) for name in ("temperature", "top_p", "seed", "max_tokens")}
    fields = cast("ChatFields", {name: value for name, value in wanted.items() if value is not None})
    messages: list[ChatMessage] = [{"role": "system", "content": given.system}] if given.system else []
    with connect(given) as client:
        model = given.name or only_model(client)
        if given.message is None:
            return _converse(client, model, messages, fields)
        messages.append({"role": "user", "content": given.message})
        answer = ask(client, model, messages, fields, show=not given.json)
    if given.json:
        print_json(answer)
    return 0


def only_model(client: Client) -> str:
    """Raises: Unavailable where nothing is served, ModelNotFound where a choice is needed."""
    known = [model for model in client.models.served() if model.parent is None]  # adapters are asked by name
    served = [model.id for model in known if model.ready]
    if not served and known:
        names = ", ".join(model.id for model in known)
        raise Unavailable(f"nothing is ready yet ({names}); `trivet ps` shows how far it is")
    if not served:
        raise Unavailable("no model is served; launch one with `trivet launch MODEL`")
    if len(served) > 1:
        raise ModelNotFound(f"several models are served; name one of: {', '.join(sorted(served))}")
    return served[0]


def ask(client: Client, model: str, messages: list[ChatMessage], fields: ChatFields, *, show: bool) -> Answer:
    """One streamed answer, printed as it comes if `show`. Raises: TrivetError, also in mid-answer."""
    start = time.perf_counter()
    first = last = None
    pieces: list[str] = []
    finish_reason, usage, is_thinking = None, None, False
    for chunk in client.chat.stream(model, messages, **fields):
        if chunk.text or chunk.reasoning:
            last = time.perf_counter()
            first = first or last
        if show and chunk.reasoning:
            _show_thinking(chunk.reasoning)
        if chunk.text:
            if show:
                sys.stdout.write("\n\n" if is_thinking and sys.stderr.isatty() else "")
                sys.stdout.write(shown_on(sys.stdout, chunk.text))
                sys.stdout.flush()
            pieces.append(chunk.text)
        is_thinking = bool(chunk.reasoning) or (is_thinking and not chunk.text)
        finish_reason = chunk.finish_reason or finish_reason
        usage = chunk.usage or usage
    if show:
        print()
    completion_tokens = usage.completion_tokens if usage else len(pieces)
    decode_s = last - first if first is not None and last is not None else 0.0
    return Answer(
        text="".join(pieces),
        finish_reason=finish_reason,
        ttft_ms=None if first is None else round((first - start) * 1e3, 1),
        tokens_per_s=round((completion_tokens - 1) / decode_s, 1) if decode_s > 0 else None,
        prompt_tokens=usage.prompt_tokens if usage else 0,
        completion_tokens=completion_tokens,
    )


def _show_thinking(text: str) -> None:
    """Dim, on a terminal only: what is piped on is the answer."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\033[2m{shown_on(sys.stderr, text)}\033[0m")
        sys.stderr.flush()


def _converse(client: Client, model: str, messages: list[ChatMessage], fields: ChatFields) -> int:
    """Ask until the end of input. Ctrl-C ends an answer, or the conversation at the prompt."""
    _enable_line_editing()
    if sys.stdin.isatty():
        note(f"{model}: Ctrl-C stops an answer, Ctrl-D ends the conversation")
    while True:
        try:
            text = input("> " if sys.stdin.isatty() else "").strip()
        except EOFError:
            return 0
        if not text:
            continue
        messages.append({"role": "user", "content": text})
        try:
            answer = ask(client, model, messages, fields, show=True)
        except KeyboardInterrupt:
            print()
            messages.pop()  # an answer that was cut must not become part of what the model said
        except TrivetError as error:
            messages.pop()
            if not sys.stdin.isatty():
                raise
            note(f"trivet: {error}")
        else:
            messages.append({"role": "assistant", "content": answer.text})


def _enable_line_editing() -> None:
    with contextlib.suppress(ImportError):  # a Python built without it: input() still works
        import readline  # noqa: F401  # importing it is what gives input() history and arrow keys


COMMANDS = (Command("chat", "talk to a model that is being served", _add_arguments, _run),)
