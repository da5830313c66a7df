"""`trivet plan`: what a launch would take, before it is launched. Reads file headers only, no torch."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from trivet.commands.connecting import (
    add_server_options,
    add_settings_option,
    connect,
    model_argument,
    parse_pairs,
)
from trivet.commands.output import add_json_option, bytes_text, print_json
from trivet.errors import BackendError
from trivet.plugins import Command

if TYPE_CHECKING:
    from trivet.client import Plan


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model", metavar="MODEL", help="a folder or a GGUF file; or a name, which asks the server"
    )
    parser.add_argument("--backend", default="auto", help="cpu, cuda, ascend or auto (default)")
    parser.add_argument("--device", help="uid or index of a device, see `trivet devices`")
    add_settings_option(parser)
    add_json_option(parser)
    add_server_options(parser)


def _run(given: argparse.Namespace) -> int:
    settings = parse_pairs(given.pairs)
    model = model_argument(given.model)
    if model.startswith("/") and given.url is None:
        plan = plan_here(model, given.backend, given.device, settings)
    else:
        with connect(given) as client:
            plan = client.plan(model, backend=given.backend, device=given.device, settings=settings)
    if given.json:
        print_json(plan)
    else:
        _print_report(plan)
    return 0 if plan.fits else 1


def plan_here(model: str, backend: str, device: str | None, settings: dict[str, str]) -> Plan:
    """The plan on this host's devices; one that does not fit carries the reason.

    Raises: ModelFilesError, ConfigError.
    """
    from trivet.client import Plan
    from trivet.client.results import PlanPart
    from trivet.config import parse_engine_settings
    from trivet.engine.assembly import place
    from trivet.models.model_files import open_model
    from trivet.plugins import load_plugins

    host = load_plugins()
    files = open_model(model, host)
    try:
        placed = place(host, files, parse_engine_settings(settings), backend, (device,) if device else ())
    except BackendError as error:
        return Plan(backend=backend, device=device, fits=False, reason=str(error))
    return Plan(
        backend=placed.backend.name,
        device=",".join(device.uid for device in placed.devices),
        parts=tuple(PlanPart(name=part.name, size_bytes=part.size_bytes) for part in placed.plan.parts),
        num_blocks=placed.plan.num_blocks,
        block_size=placed.plan.kv.block_size,
        max_model_len=placed.plan.max_model_len,
        max_num_batched_tokens=placed.plan.max_num_batched_tokens,
    )


def _print_report(plan: Plan) -> None:
    if not plan.fits:
        print(f"does not fit: {plan.reason}")
        return
    total = sum(part.size_bytes for part in plan.parts)
    print(f"fits on {plan.backend} {plan.device or ''}".rstrip())
    for part in (*plan.parts, None):
        name, size = ("total", total) if part is None else (part.name, part.size_bytes)
        print(f"  {name:<14} {bytes_text(size):>12}")
    tokens = num_kv_tokens(plan)
    blocks = " + ".join(map(str, plan.num_blocks))
    print(f"KV cache: {blocks} blocks of {plan.block_size} tokens = {tokens:,} tokens")
    sequences = tokens / plan.max_model_len
    print(f"context {plan.max_model_len:,} tokens: {sequences:.1f} sequences of full length at once")
    print(f"a step computes up to {plan.max_num_batched_tokens:,} tokens")


def num_kv_tokens(plan: Plan) -> int:
    """Tokens that the scarcest group holds; block 0 is scratch and holds none."""
    return (min(plan.num_blocks, default=1) - 1) * plan.block_size


COMMANDS = (
    Command("plan", "show the memory that a launch would take, and whether it fits", _add_arguments, _run),
)
