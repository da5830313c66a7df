"""`trivet bench`: how fast this machine is, in the terms that users feel.

Prompts are random token ids of a fixed length, so that every run computes the same amount, no prefix is
cached, and no end token ends an answer early. One run warms up; figures are medians over the others.
"""

from __future__ import annotations

import argparse

from trivet.commands.connecting import add_server_options, add_settings_option
from trivet.commands.output import add_json_option
from trivet.plugins import Command


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    kinds = parser.add_subparsers(metavar="KIND", required=True)
    latency = kinds.add_parser("latency", help="one request at a time, in this process")
    _add_offline(latency)
    _add_shape(latency)
    latency.set_defaults(action=_latency)
    throughput = kinds.add_parser("throughput", help="many requests at once, in this process")
    _add_offline(throughput)
    _add_shape(throughput)
    throughput.add_argument("-n", "--num-prompts", type=_count, default=32, metavar="N", help="at once (32)")
    throughput.set_defaults(action=_throughput)
    serve = kinds.add_parser("serve", help="concurrent streams against a running server")
    serve.add_argument("name", metavar="NAME", nargs="?", help="a deployment (default: the only one)")
    _add_shape(serve)
    serve.add_argument("-c", "--concurrency", type=_count, default=8, metavar="N", help="streams at once (8)")
    serve.add_argument(
        "-n", "--num-prompts", type=_count, default=32, metavar="N", help="requests a run (32)"
    )
    add_server_options(serve)
    serve.set_defaults(action=_serve)
    startup = kinds.add_parser("startup", help="from a new process to its first token")
    _add_offline(startup)
    startup.set_defaults(action=_startup)
    for kind in (latency, throughput, serve, startup):
        kind.add_argument("--repeats", type=_count, default=3, metavar="N", help="measured runs (3)")
        add_json_option(kind)


def _add_offline(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model", metavar="MODEL", nargs="?", help="a folder or GGUF file (default: demo model)"
    )
    parser.add_argument("--backend", default="auto", help="cpu, cuda, ascend or auto (default)")
    parser.add_argument("--device", help="uid or index of a device, see `trivet devices`")
    add_settings_option(parser)


def _add_shape(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--prompt-tokens", type=_count, default=128, metavar="N", help="of each prompt (128)")
    parser.add_argument("--output-tokens", type=_count, default=128, metavar="N", help="of each answer (128)")
    parser.add_argument("--seed", type=int, default=0, help="of the prompts (0)")


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a count; give a whole number from 1")
    return int(text)


def _run(given: argparse.Namespace) -> int:
    code: int = given.action(given)
    return code


# The kinds are imported when they run: they need NumPy, an engine or an HTTP client.


def _latency(given: argparse.Namespace) -> int:
    from trivet.commands.bench.offline import bench_latency

    return bench_latency(given)


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
