"""`trivet plan`: what a launch would take, before it is launched. Reads file headers only, no torch.

Where a server runs it is asked: what its instances hold, and have not taken yet, only it knows.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from trivet.commands.connecting import (
    add_server_options,
    add_settings_option,
    connect,
    given_settings,
    model_argument,
)
from trivet.commands.output import add_json_option, bytes_text, print_json
from trivet.counted import counted
from trivet.errors import BackendError, Unavailable
from trivet.plugins import Command

if TYPE_CHECKING:
    from trivet.client import Plan
    from trivet.client.results import PlanSpeed


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="a folder or a GGUF file, or a name of the server's")
    parser.add_argument("--backend", default="auto", help="cpu, cuda, ascend or auto (default)")
    parser.add_argument("--device", help="uid or index of a device, see `trivet devices`")
    add_settings_option(parser)
    add_json_option(parser)
    add_server_options(parser)


def _run(given: argparse.Namespace) -> int:
    settings = given_settings(given)
    model = model_argument(given.model)
    is_file_here = model.startswith("/") and given.url is None
    plan = (_plan_of_file if is_file_here else _plan_of_server)(given, model, settings)
    if given.json:
        print_json(plan)
    else:
        _print_report(plan)
    return 0 if plan.fits else 1


def _plan_of_server(given: argparse.Namespace, model: str, settings: dict[str, str]) -> Plan:
    with connect(given) as client:
        return client.plan(model, backend=given.backend, device=given.device, settings=settings)


def _plan_of_file(given: argparse.Namespace, model: str, settings: dict[str, str]) -> Plan:
    """By the server of this home, which knows what its instances hold; without one by this process."""
    from trivet.config import load_settings

    if load_settings().paths.url_file.exists():
        try:
            return _plan_of_server(given, model, settings)
        except Unavailable:  # its serve was killed, or has just begun
            pass
    return plan_here(model, given.backend, given.device, settings)


def plan_here(model: str, backend: str, device: str | None, settings: dict[str, str]) -> Plan:
    """The plan on this host's devices; one that does not fit carries the reason.

    Raises: ModelFilesError, ConfigError.
    """
    from trivet.client import Plan
    from trivet.client.plan_report import plan_report
    from trivet.config import home_paths
    from trivet.engine.capacity import Capacity
    from trivet.engine.measured_peaks import PeakStore
    from trivet.engine_settings import parse_engine_settings
    from trivet.models.model_files import open_model
    from trivet.plugins import load_plugins
    from trivet.prober import Prober

    host = load_plugins()
    files = open_model(model, host)
    try:
        capacity = Capacity(files, parse_engine_settings(settings), peaks=PeakStore(home_paths().peaks))
        answers = capacity.answers(host, Prober(), backend, device)
    except BackendError as error:
        return Plan(backend=backend, device=device, fits=False, reason=str(error))
    return plan_report(backend, device, answers)


def _print_report(plan: Plan) -> None:
    if not plan.fits:
        print(f"does not fit: {plan.reason}")
        _print_changes(plan)
        _print_devices(plan)
        return
    total = sum(part.size_bytes for part in plan.parts)
    print(f"fits on {plan.backend} {plan.device or ''}".rstrip())
    for part in (*plan.parts, None):
        name, size = ("total", total) if part is None else (part.name, part.size_bytes)
        print(f"  {name:<14} {bytes_text(size):>12}")
    if plan.host_bytes:
        print(f"and of the host's memory {bytes_text(plan.host_bytes)}")
    blocks = " + ".join(map(str, plan.num_blocks))
    sequences = counted(plan.num_sequences, "sequence")
    print(f"KV cache: {blocks} blocks of {plan.block_size} tokens = {plan.num_kv_tokens:,} tokens", end="")
    print(f"; {plan.kv_token_bytes:,} bytes a token in {plan.kv_dtype}")
    print(f"context {plan.max_model_len:,} tokens: {sequences} of full length at once")
    print(f"a step computes up to {plan.max_num_batched_tokens:,} tokens")
    if plan.speed is not None:
        _print_speed(plan.speed)
    _print_devices(plan)


def _print_speed(speed: PlanSpeed) -> None:
    gigabytes = speed.bandwidth_bytes_per_s / 1e9
    print(
        f"where memory is read at {gigabytes:.1f} GB/s, at most {speed.one_stream:,.0f} "
        f"tokens/s for one stream, {speed.one_stream_full:,.0f} at the end of its context; "
        f"{speed.all_streams_full:,.0f} for all sequences of full length together"
    )


def _print_changes(plan: Plan) -> None:
    """Each is enough by itself."""
    for change in plan.changes:
        how = "" if change.setting is None else f": --set {change.setting}={change.value}"
        print(f"  it would fit: {change.text}{how}")


def _print_devices(plan: Plan) -> None:
    for one in plan.devices:
        where = f"{one.backend} {one.device}".rstrip()
        if one.total_bytes:
            ours = bytes_text(one.ours_bytes)
            print(
                f"{where}: {bytes_text(one.total_bytes)}, of which instances hold {ours} "
                f"and others {bytes_text(one.others_bytes)}; {bytes_text(one.left_bytes)} left"
            )
        if not one.fits and one.reason != plan.reason:
            print(f"{where}: {one.reason}")


COMMANDS = (
    Command("plan", "show the memory that a launch would take, and whether it fits", _add_arguments, _run),
)
