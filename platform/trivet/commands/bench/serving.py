"""`trivet bench serve`: a load against a running server, as its clients feel it."""

from __future__ import annotations

import argparse
import resource
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from trivet.bench.load import measure
from trivet.bench.machine import machine
from trivet.bench.prompts import Form
from trivet.bench.server_load import ServerLoad
from trivet.bench.suite import chosen, run_suite
from trivet.bench.target import Target
from trivet.commands.bench.options import load_config, scenario, seeds, slo
from trivet.commands.bench.report import Report, suite_report
from trivet.commands.chat import only_model
from trivet.commands.connecting import connect
from trivet.errors import ConfigError, GenerationError, TrivetError

if TYPE_CHECKING:
    from trivet.client import Client

DEFAULT_CONCURRENCY = 8
OTHER_FILES = 64  # that this process has open beside its connections, at most


def bench_serve(given: argparse.Namespace) -> int:
    """Measure, then ask a Trivet server for the memory of its engines, where they are on this host."""
    try:
        _bench(given).show(given)
    except GenerationError as error:
        if "HTTP 400" not in str(error):
            raise
        raise GenerationError(
            f"{error}; a field that the server refuses is left out with --no-ignore-eos, "
            """or with --extra-body '{"FIELD": null}'"""
        ) from error
    return 0


def _bench(given: argparse.Namespace) -> Report:
    before = machine()
    if given.concurrency is None and given.rate is None:
        given.concurrency = DEFAULT_CONCURRENCY
    _check_open_files(given)
    rungs = chosen([name for name in given.only.split(",") if name])
    extra = _extra_fields(given.extra_body)
    if given.url is not None:
        given.url = given.url.rstrip("/").removesuffix("/v1")  # which other tools want there
    with connect(given) as client:
        name = given.model or given.name or only_model(client)
        target = Target(
            client.base_url, name, given.endpoint, client.api_key, extra, given.timeout, given.ca_file
        )
        load = ServerLoad(target, _sampling(given), _form(given))
        config = {"model": name, "url": target.url, **_deployment(client, name)}
        config |= {"endpoint": given.endpoint, "extra_body": extra or None}
        if given.suite:
            results = run_suite(load, rungs, seeds(given), given.repeats, slo(given))
            report = suite_report("serve", {**config, **load_config(given)}, before, results)
        else:
            form: Form = "chat" if given.endpoint == "chat" else "text"
            measured = measure(
                load, scenario(given, load.form, load.id_range, form), seeds(given), given.repeats
            )
            report = Report("serve", {**config, **load_config(given)}, before, measured.as_json())
        memory = _peak_rss_bytes(client, name)
    if memory is not None:
        report.figures["peak_rss_bytes"] = memory
    return report


def _check_open_files(given: argparse.Namespace) -> None:
    """Raises: ConfigError where the load takes more connections than this process may open."""
    if given.suite or given.workload == "jsonl" or given.concurrency is None:
        return
    at_once = min(given.concurrency, given.num_prompts)
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit != resource.RLIM_INFINITY and at_once > limit - OTHER_FILES:
        raise ConfigError(
            f"{at_once:,} requests at once take as many connections, and this process may have {limit:,} "
            "open files; lower --concurrency or --num-prompts, or raise the limit (ulimit -n)"
        )


def _sampling(given: argparse.Namespace) -> dict[str, object]:
    fields: dict[str, object] = {"temperature": given.temperature, "top_p": given.top_p}
    if given.ignore_eos:
        fields["ignore_eos"] = True
    return fields


def _form(given: argparse.Namespace) -> Form:
    """A server tells no ids of its answers, so a conversation goes on as text."""
    if given.endpoint == "chat":
        return "chat"
    return "text" if given.text or given.workload == "multi-turn" else "ids"


def _extra_fields(text: str) -> dict[str, object]:
    try:
        return msgspec.json.decode(text, type=dict[str, object])
    except msgspec.MsgspecError as error:
        raise ConfigError(f"--extra-body {text!r} is no JSON object: {error}") from error


def _deployment(client: Client, name: str) -> dict[str, object]:
    """What a Trivet server tells of the model behind a name; another server, or one that refuses: nothing."""
    try:
        deployed = client.deployments.get(name)
        versions = client.models.get(deployed.model).versions
        instances = client.instances.list(name)
        server = client.status().version
    except TrivetError:
        return {}
    number = deployed.version or max((v.version for v in versions), default=0)
    backends = sorted({instance.backend for instance in instances if instance.backend})
    return {
        "quantization": next((v.quantization for v in versions if v.version == number), None),
        "backend": ", ".join(backends) or None,
        "replicas": deployed.replicas,
        "settings": deployed.settings or None,
        "server_version": server,
    }


def _peak_rss_bytes(client: Client, model: str) -> int | None:
    """Of the deployment's engine processes, where they are on this host and may be asked for."""
    try:
        pids = [i.pid for i in client.instances.list(model) if i.state == "ready" and i.pid]
        peaks = [_high_water_mark(pid) for pid in pids]
    except (TrivetError, OSError, ValueError):
        return None
    return sum(peaks) if peaks else None


def _high_water_mark(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise ValueError(f"process {pid} has no VmHWM")
