"""What a launch would take now, by the same backends on the same devices.

What live instances have a claim to is counted, also where they are loading and have not taken it yet.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from trivet.client.plan_report import plan_report
from trivet.client.results import Plan
from trivet.engine.capacity import Capacity
from trivet.engine.measured_peaks import NOWHERE, PeakStore
from trivet.engine_settings import parse_engine_settings
from trivet.errors import BackendError
from trivet.models.model_files import open_model
from trivet.plugins import PluginHost
from trivet.prober import Prober
from trivet_registry.claims import ledger_of
from trivet_registry.database import Database
from trivet_registry.instance_state import PROCESS_STATES
from trivet_registry.instances_store import list_instances


def plan_launch(
    database: Database,
    plugins: PluginHost,
    prober: Prober,
    path: Path,
    settings: Mapping[str, str],
    backend: str = "auto",
    device: str | None = None,
    peaks: PeakStore = NOWHERE,
) -> Plan:
    """What cannot run is an answer, no error. Raises: ModelFilesError; ConfigError for settings."""
    parsed = parse_engine_settings(settings)
    files = open_model(path, plugins)
    if backend != "auto":
        for name in backend.split(","):
            plugins.backend(name)
    with database.reading() as session:
        ledger = ledger_of(list_instances(session, states=PROCESS_STATES))
    try:
        answers = Capacity(files, parsed, ledger, peaks).answers(plugins, prober, backend, device)
    except BackendError as error:
        return Plan(backend=backend, device=device, fits=False, reason=str(error))
    return plan_report(backend, device, answers)
