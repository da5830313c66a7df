"""`trivet run` and `trivet generate`: use a model in this process, without a server."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import msgspec

from trivet.commands.connecting import add_settings_option, local_model, parse_pairs
from trivet.commands.output import add_json_option, note, print_json
from trivet.errors import ConfigError, RequestError
from trivet.plugins import Command
from trivet.sampling_params import SamplingParams

if TYPE_CHECKING:
    from trivet.llm import LLM
    from trivet.outputs import RequestOutput

DEFAULT_MAX_TOKENS = 256


class Line(msgspec.Struct, forbid_unknown_fields=True):
    """One line of `generate`'s input: a prompt or messages, and its own sampling where it differs."""

    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    id: str | int | None = None
    sampling: dict[str, Any] = {}


class Generated(msgspec.Struct):
    """One line of `generate`'s output, in the order of the input."""

    id: str | int
    text: str
    finish_reason: str | None
    prompt_tokens: int
    completion_tokens: int
    error: str | None = None


def _add_run(parser: argparse.ArgumentParser) -> None:
    _add_model_options(parser)
    parser.add_argument("--prompt", required=True, metavar="T", help="what to say to the model")
    parser.add_argument(
        "--raw", action="store_true", help="complete the text as it is, without a chat template"
    )
    add_json_option(parser)


def _add_generate(parser: argparse.ArgumentParser) -> None:
    _add_model_options(parser)
    parser.add_argument(
        "-i", "--input", type=Path, required=True, metavar="IN.jsonl", help='lines of {"prompt": ...}'
    )
    parser.add_argument(
        "-o", "--output", type=Path, required=True, metavar="OUT.jsonl", help="appears when it is complete"
    )


def _add_model_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="a folder, a GGUF file, or a registered name")
    parser.add_argument("--backend", default="auto", help="cpu, cuda, ascend or auto (default)")
    parser.add_argument("--device", help="uid or index of a device, see `trivet devices`")
    parser.add_argument(
        "--max-tokens", type=int, default=DEFAULT_MAX_TOKENS, help=f"default {DEFAULT_MAX_TOKENS}"
    )
    parser.add_argument("--temperature", type=float, help="0 = always the likeliest token")
    parser.add_argument("--top-p", type=float)
    parser.add_argument("--seed", type=int)
    add_settings_option(parser)


def _run(given: argparse.Namespace) -> int:
    with _load(given) as llm:
        params = _params(llm, given)
        prompt: Any = given.prompt
        if not given.raw and llm.engine.files.chat_template is not None:
            prompt = llm.chat_prompt([{"role": "user", "content": given.prompt}])
        if given.json:
            (output,) = llm.generate(prompt, params, use_tqdm=False)
            print_json(_generated(output, 0))
            return 1 if output.error else 0
        for text in llm.stream(prompt, params):
            sys.stdout.write(text)
            sys.stdout.flush()
        print()
    return 0


def _generate(given: argparse.Namespace) -> int:
    lines = list(read_lines(given.input))
    with whole_file(given.output) as out:  # opened before minutes of work, not after
        results = _generate_all(given, lines)
        out.writelines(msgspec.json.encode(result) + b"\n" for result in results)
    failed = sum(result.error is not None for result in results)
    num_tokens = sum(result.completion_tokens for result in results)
    note(f"{len(results)} prompts, {failed} failed, {num_tokens} tokens: {given.output}")
    return 1 if failed else 0


def _generate_all(given: argparse.Namespace, lines: Sequence[Line]) -> list[Generated]:
    """A line that cannot run has an error in its place; the others run."""
    results: dict[int, Generated] = {}
    with _load(given) as llm:
        base = _params(llm, given)
        params = [_merge(base, line, number) for number, line in enumerate(lines, start=1)]
        prompts: dict[int, Any] = {}
        for i, line in enumerate(lines):
            try:
                prompts[i] = _checked_prompt(llm, line)
            except RequestError as error:
                results[i] = Generated(_identity(line, i), "", "error", 0, 0, error.message)
        outputs = llm.generate(
            list(prompts.values()), [params[i] for i in prompts], use_tqdm=sys.stderr.isatty()
        )
    for i, output in zip(prompts, outputs, strict=True):
        results[i] = _generated(output, _identity(lines[i], i))
    return [results[i] for i in range(len(lines))]


def _checked_prompt(llm: LLM, line: Line) -> dict[str, Any]:
    """Raises: RequestError where it cannot run."""
    if line.messages is None:
        text = line.prompt or ""
        prompt: dict[str, Any] = {"prompt": text, "prompt_token_ids": llm.get_tokenizer().encode(text)}
    else:
        prompt = llm.chat_prompt(line.messages)
    llm.engine.core.check_prompt(prompt["prompt_token_ids"])
    return prompt


def _identity(line: Line, index: int) -> str | int:
    return index if line.id is None else line.id


def read_lines(file: Path) -> Iterator[Line]:
    """Raises: RequestError naming file and line; ConfigError where it cannot be read."""
    try:
        raw = file.read_bytes()
    except OSError as error:
        raise ConfigError(f"-i {file}: {error.strerror}") from error
    for number, text in enumerate(raw.splitlines(), start=1):
        if not text.strip():
            continue
        try:
            line = msgspec.json.decode(text, type=Line)
        except msgspec.MsgspecError as error:
            raise RequestError(f"{file}, line {number}: {error}") from error
        if (line.prompt is None) == (line.messages is None):
            raise RequestError(f"{file}, line {number}: give either 'prompt' or 'messages'")
        yield line


def _load(given: argparse.Namespace) -> LLM:
    settings = parse_pairs(given.pairs)
    from trivet.llm import LLM

    return LLM(local_model(given.model), backend=given.backend, device=given.device, **settings)


def _params(llm: LLM, given: argparse.Namespace) -> SamplingParams:
    """What the model's own files ask for, and the command line over it."""
    fields: dict[str, Any] = {"max_tokens": given.max_tokens, "seed": given.seed}
    for name in ("temperature", "top_p"):
        if (value := getattr(given, name)) is not None:
            fields[name] = value
    params = msgspec.structs.replace(llm.get_default_sampling_params(), **fields)
    params.check()
    return params


def _merge(base: SamplingParams, line: Line, index: int) -> SamplingParams:
    fields = {**msgspec.structs.asdict(base), **line.sampling}
    unknown = sorted(set(fields) - set(SamplingParams.__struct_fields__))
    if unknown:
        raise RequestError(f"prompt {index}: sampling has no field {unknown[0]!r}", param="sampling")
    try:
        return msgspec.convert(fields, SamplingParams)
    except msgspec.ValidationError as error:
        raise RequestError(f"prompt {index}: sampling: {error}", param="sampling") from error


def _generated(output: RequestOutput, identity: str | int) -> Generated:
    completion = output.outputs[0]
    return Generated(
        identity,
        completion.text,
        completion.finish_reason,
        len(output.prompt_token_ids),
        len(completion.token_ids),
        output.error,
    )


@contextmanager
def whole_file(file: Path) -> Iterator[IO[bytes]]:
    """A file that appears under its name once it is complete; a run that dies leaves none.

    Raises: ConfigError where it cannot be written.
    """
    partial = file.with_name(f"{file.name}.partial")
    try:
        out = partial.open("wb")
    except OSError as error:
        raise ConfigError(f"-o {file}: {error.strerror}") from error
    try:
        with out:
            yield out
        partial.replace(file)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


COMMANDS = (
    Command("run", "answer one prompt in this process, without a server", _add_run, _run),
    Command("generate", "answer a file of prompts in this process", _add_generate, _generate),
)
