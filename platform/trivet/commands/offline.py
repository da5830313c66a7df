"""`trivet run`: use a model in this process, without a server. (`trivet generate`: trivet_web.batch.)"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

import msgspec

from trivet.commands.connecting import add_settings_option, given_settings, local_model
from trivet.commands.output import add_json_option, print_json, shown_on
from trivet.engine_settings import parse_engine_settings
from trivet.errors import ConfigError
from trivet.plugins import Command
from trivet.sampling_params import SamplingParams

if TYPE_CHECKING:
    from trivet.llm import LLM
    from trivet.outputs import RequestOutput

DEFAULT_MAX_TOKENS = 256


class Generated(msgspec.Struct):
    """What `run --json` prints, and a simple line of `generate`'s output."""

    id: str | int
    text: str
    finish_reason: str | None
    prompt_tokens: int
    completion_tokens: int
    error: str | None = None


def _add_run(parser: argparse.ArgumentParser) -> None:
    add_model_options(parser)
    parser.add_argument(
        "-m",
        "--prompt",
        "--message",
        dest="prompt",
        required=True,
        metavar="T",
        help="what to say to the model",
    )
    parser.add_argument(
        "--raw", action="store_true", help="complete the text as it is, without a chat template"
    )
    add_json_option(parser)


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """Which model on which device, how it samples, engine settings."""
    parser.add_argument(
        "model", metavar="MODEL", help="a folder, a GGUF file, name, name:version or name:alias"
    )
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
    adapters = parse_engine_settings(given_settings(given)).adapters
    if len(adapters) > 1:
        raise ConfigError(
            f"{', '.join(adapters)} are given, and one adapter answers a prompt; name one of them"
        )
    adapter = next(iter(adapters), None)
    with load(given) as llm:
        params = _params(llm, given)
        prompt: Any = given.prompt
        if not given.raw and llm.engine.files.chat_template is not None:
            prompt = llm.chat_prompt([{"role": "user", "content": given.prompt}])
        if given.json:
            (output,) = llm.generate(prompt, params, use_tqdm=False, lora_request=adapter)
            print_json(_generated(output))
            return 1 if output.error else 0
        for text in llm.stream(prompt, params, lora_request=adapter):
            sys.stdout.write(shown_on(sys.stdout, text))
            sys.stdout.flush()
        print()
    return 0


def load(given: argparse.Namespace) -> LLM:
    """The model of the options. Raises: ConfigError, ModelFilesError, BackendError."""
    settings = given_settings(given)
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


def _generated(output: RequestOutput) -> Generated:
    completion = output.outputs[0]
    return Generated(
        0,
        completion.text,
        completion.finish_reason,
        len(output.prompt_token_ids),
        len(completion.token_ids),
        output.error,
    )


COMMANDS = (Command("run", "answer one prompt in this process, without a server", _add_run, _run),)
