"""`trivet bench`: how fast this machine is, in the terms that users feel (`trivet.bench`)."""

from __future__ import annotations

import argparse
from pathlib import Path

from trivet.commands.bench.options import add_load_options, add_shape_options, count, counts, positive
from trivet.commands.connecting import add_server_options, add_settings_option
from trivet.commands.output import add_json_option
from trivet.plugins import Command

# The load of `latency`, in the terms of the other kinds' options.
SINGLE_STREAM: dict[str, object] = {
    "workload": "random",
    "input": None,
    "num_prompts": 1,
    "concurrency": 1,
    "rate": None,
    "burstiness": 1.0,
    "goodput": None,
    "suite": False,
    "only": "",
    "prefix_tokens": 0,
    "warm": False,
    "turns": 1,
}
DEFAULT_BUDGETS = "32,64,128,256,512"


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    kinds = parser.add_subparsers(metavar="KIND", required=True)
    for name, help_text, add_options in (
        ("latency", "one request at a time, in this process", _add_latency),
        ("throughput", "many requests at once, in this process", _add_throughput),
        ("serve", "a load against a running server, ours or any that speaks OpenAI's API", _add_serve),
        ("startup", "from a new process to its first token", _add_startup),
    ):
        kind = kinds.add_parser(name, help=help_text, description=help_text, allow_abbrev=False)
        add_options(kind)
        kind.add_argument("--repeats", type=count, default=3, metavar="N", help="measured runs (3)")
        add_json_option(kind)
        kind.add_argument("-o", "--output", type=Path, metavar="FILE", help="write the JSON there as well")
        kind.add_argument("--plot", type=Path, metavar="FILE", help="draw a chart: FILE.svg or FILE.png")


def _add_latency(parser: argparse.ArgumentParser) -> None:
    _add_offline(parser)
    add_shape_options(parser)
    parser.add_argument(
        "--interference",
        action="store_true",
        help="gaps of decoding streams while prompts arrive, for several step budgets",
    )
    parser.add_argument(
        "--budgets",
        type=counts,
        default=counts(DEFAULT_BUDGETS),
        metavar="N,...",
        help=f"of --interference: max_num_batched_tokens to try ({DEFAULT_BUDGETS})",
    )
    parser.add_argument(
        "--streams", type=count, default=8, metavar="N", help="of --interference: decoding streams (8)"
    )
    parser.add_argument(
        "--arriving-tokens", type=count, default=1024, metavar="N", help="of an arriving prompt (1024)"
    )
    parser.set_defaults(action=_latency, **SINGLE_STREAM)


def _add_throughput(parser: argparse.ArgumentParser) -> None:
    _add_offline(parser)
    add_shape_options(parser)
    add_load_options(parser, num_prompts=32)
    parser.add_argument(
        "-c", "--concurrency", type=count, metavar="N", help="requests at once (default: all of a run)"
    )
    parser.set_defaults(action=_throughput)


def _add_serve(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", nargs="?", help="a deployment (default: the only one)")
    parser.add_argument("--model", metavar="NAME", help="the same, as other servers call it")
    add_shape_options(parser)
    add_load_options(parser, num_prompts=32)
    parser.add_argument(
        "-c", "--concurrency", type=count, metavar="N", help="requests at once (8; no bound with --rate)"
    )
    parser.add_argument(
        "--endpoint",
        choices=("completions", "chat"),
        default="completions",
        help="completions (default) or chat",
    )
    parser.add_argument("--text", action="store_true", help="send words instead of token ids")
    parser.add_argument(
        "--no-ignore-eos",
        dest="ignore_eos",
        action="store_false",
        help="leave ignore_eos out: for servers that refuse it; answers may end early",
    )
    parser.add_argument(
        "--extra-body", default="{}", metavar="JSON", help="fields of every request; a null leaves one out"
    )
    parser.add_argument(
        "--timeout", type=positive, default=300.0, metavar="S", help="of a whole request, in seconds (300)"
    )
    add_server_options(parser)
    parser.set_defaults(action=_serve)


def _add_startup(parser: argparse.ArgumentParser) -> None:
    _add_offline(parser)
    parser.set_defaults(action=_startup)


def _add_offline(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model", metavar="MODEL", nargs="?", help="a folder or GGUF file (default: demo model)"
    )
    parser.add_argument("--backend", default="auto", help="cpu, cuda, ascend or auto (default)")
    parser.add_argument("--device", help="uid or index of a device, see `trivet devices`")
    add_settings_option(parser)


def _run(given: argparse.Namespace) -> int:
    from trivet.commands.bench.report import check_files

    check_files(given.plot, given.output)  # before minutes of work, not after
    code: int = given.action(given)
    return code


# The kinds are imported when they run: they need NumPy, an engine or an HTTP client.


def _latency(given: argparse.Namespace) -> int:
    from trivet.commands.bench.offline import bench_interference, bench_latency

    return bench_interference(given) if given.interference else bench_latency(given)


def _throughput(given: argparse.Namespace) -> int:
    from trivet.commands.bench.offline import bench_throughput

    return bench_throughput(given)


def _serve(given: argparse.Namespace) -> int:
    from trivet.commands.bench.serving import bench_serve

    return bench_serve(given)


def _startup(given: argparse.Namespace) -> int:
    from trivet.commands.bench.startup import bench_startup

    return bench_startup(given)


COMMANDS = (Command("bench", "measure latency, throughput, serving and start-up", _add_arguments, _run),)
