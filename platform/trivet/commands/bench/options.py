"""Options that describe a load, and the scenario that follows from them."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING

from trivet.errors import ConfigError

if TYPE_CHECKING:
    from trivet.bench.figures import Slo
    from trivet.bench.load import Scenario
    from trivet.bench.prompts import Form
    from trivet.bench.workload import Seeds, Shape, Workload, WorkloadOfRun

WORKLOADS = ("random", "shared-prefix", "multi-turn", "jsonl")
DEFAULT_PREFIX_TOKENS = 768
DEFAULT_TURNS = 3


def count(text: str) -> int:
    """A whole number from 1."""
    if not (text.isascii() and text.isdigit()) or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a count; give a whole number from 1")
    return int(text)


def counts(text: str) -> list[int]:
    """Several, with commas."""
    return [count(part) for part in text.split(",")]


def positive(text: str) -> float:
    """A number above 0."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return value


def span(text: str) -> tuple[int, int]:
    """`N`, or `LOW:HIGH` with both ends included."""
    low, colon, high = text.partition(":")
    ends = (count(low), count(high) if colon else count(low))
    if ends[0] > ends[1]:
        raise argparse.ArgumentTypeError(f"{text!r} ends below its beginning; give LOW:HIGH")
    return ends


def limit(text: str) -> tuple[str, float]:
    """`ttft:500`: a latency and its limit in ms."""
    name, _, value = text.partition(":")
    if name not in ("ttft", "tpot", "e2e"):
        raise argparse.ArgumentTypeError(f"{text!r} is no limit; give ttft:MS, tpot:MS or e2e:MS")
    return name, positive(value)


def add_shape_options(parser: argparse.ArgumentParser) -> None:
    """Lengths and sampling of every request."""
    add = parser.add_argument
    add("--prompt-tokens", type=span, default=(128, 128), metavar="N|LOW:HIGH", help="of a prompt (128)")
    add("--output-tokens", type=span, default=(128, 128), metavar="N|LOW:HIGH", help="of an answer (128)")
    add("--temperature", type=float, default=0.0, help="0 = always the likeliest token (default)")
    add("--top-p", type=float, default=1.0, help="1 = all tokens (default)")
    add("--seed", type=int, default=0, help="of lengths, arrivals and, with the salt, of the prompts (0)")
    add(
        "--prompt-salt",
        type=int,
        metavar="N",
        help="repeat the prompts of a report that names this salt (default: new ones, which no cache holds)",
    )


def add_load_options(parser: argparse.ArgumentParser, num_prompts: int) -> None:
    """What is asked, how often, and when."""
    add = parser.add_argument
    add("--workload", choices=WORKLOADS, default="random", help="random (default), shared-prefix ...")
    add("--input", type=Path, metavar="FILE", help="of --workload jsonl: OpenAI batch lines or plain prompts")
    add(
        "--prefix-tokens",
        type=count,
        default=DEFAULT_PREFIX_TOKENS,
        metavar="N",
        help=f"of shared-prefix: tokens that all prompts share ({DEFAULT_PREFIX_TOKENS})",
    )
    add("--warm", action="store_true", help="of shared-prefix: answer the prefix once before each run")
    add(
        "--turns",
        type=count,
        default=DEFAULT_TURNS,
        metavar="N",
        help=f"of multi-turn: requests of a conversation, each resends the history ({DEFAULT_TURNS})",
    )
    add(
        "-n",
        "--num-prompts",
        type=count,
        default=num_prompts,
        metavar="N",
        help=f"requests, or conversations, a run ({num_prompts})",
    )
    add("--rate", type=positive, metavar="R", help="open loop: R requests a second, whatever the answers do")
    add("--burstiness", type=positive, default=1.0, metavar="B", help="1 = Poisson (default), less = bursts")
    add(
        "--goodput",
        type=limit,
        nargs="+",
        metavar="KEY:MS",
        help="count the requests that kept these limits: ttft:500 tpot:50 e2e:9000",
    )
    add("--suite", action="store_true", help="the ladder of loads by which engines are compared")
    add("--only", default="", metavar="NAMES", help="of the suite: these scenarios, with commas")


def seeds(given: argparse.Namespace) -> Seeds:
    """A prefix cache outlives this process: without a salt the clock keeps the prompts new."""
    from trivet.bench.workload import Seeds

    if given.prompt_salt is None:
        given.prompt_salt = time.time_ns()
    if given.seed < 0 or given.prompt_salt < 0:
        raise ConfigError("--seed and --prompt-salt must be 0 or more")
    return Seeds(given.seed, given.prompt_salt)


def slo(given: argparse.Namespace) -> Slo | None:
    """The limits of `--goodput`."""
    from trivet.bench.figures import Slo

    return Slo(**dict(given.goodput)) if given.goodput else None


def shape(given: argparse.Namespace) -> Shape:
    """Sizes of a drawn workload."""
    from trivet.bench.workload import Lengths, Shape

    shares = given.workload == "shared-prefix"
    return Shape(
        given.num_prompts,
        Lengths(*given.prompt_tokens),
        Lengths(*given.output_tokens),
        prefix_tokens=given.prefix_tokens if shares else 0,
        is_warm=given.warm and shares,
        num_turns=given.turns if given.workload == "multi-turn" else 1,
    )


def scenario(
    given: argparse.Namespace, form: Form, id_range: tuple[int, int], endpoint_form: Form | None
) -> Scenario:
    """`endpoint_form`: the form of a file's lines that the load takes; None takes all."""
    from trivet.bench.arrivals import Arrivals
    from trivet.bench.load import Scenario
    from trivet.bench.workload import drawn

    of_run: WorkloadOfRun
    if given.workload == "jsonl":
        workload = _file_workload(given, endpoint_form)

        def of_run(run: int) -> Workload:
            return workload
    else:
        of_run = drawn(shape(given), form, id_range, seeds(given))
    arrivals = Arrivals(given.concurrency, given.rate, given.burstiness)
    return Scenario(given.workload, of_run, arrivals, slo(given))


def _file_workload(given: argparse.Namespace, form: Form | None) -> Workload:
    from trivet.bench.jsonl_workload import read_workload

    if given.input is None:
        raise ConfigError("--workload jsonl needs --input FILE")
    return read_workload(given.input, given.output_tokens[1], form)


def load_config(given: argparse.Namespace) -> dict[str, object]:
    """What a report says about the load; only what plays a part in it."""
    from trivet.bench.workload import Lengths

    sampling = {"temperature": given.temperature, "top_p": given.top_p}
    seeds = {"seed": given.seed, "prompt_salt": given.prompt_salt}
    if given.suite:
        return {**sampling, **seeds}
    config: dict[str, object] = {
        "workload": given.workload,
        "prompt_tokens": Lengths(*given.prompt_tokens).as_json(),
        "output_tokens": Lengths(*given.output_tokens).as_json(),
        "num_prompts": given.num_prompts,
        "concurrency": given.concurrency,
        "rate": given.rate,
        "burstiness": given.burstiness if given.rate is not None else None,
        "goodput": dict(given.goodput) if given.goodput else None,
    }
    config |= {
        "shared-prefix": {"prefix_tokens": given.prefix_tokens, "warm": given.warm},
        "multi-turn": {"turns": given.turns},
        "jsonl": {"input": str(given.input)},
    }.get(given.workload, {})
    return {name: value for name, value in {**config, **sampling, **seeds}.items() if value is not None}
