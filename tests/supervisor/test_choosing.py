"""What has served on a kind of hardware does not leave it for a fault that passes, or for its own update."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from trivet.demo_model import find_demo_model
from trivet.messages import Phase
from trivet.models.model_files import open_model
from trivet_registry.deployment_changes import Update, update_deployment
from trivet_registry.deployments_store import create_deployment, set_replicas
from trivet_registry.events_store import list_events
from trivet_registry.instance_state import InstanceState
from trivet_registry.models_store import register_model
from trivet_supervisor.devices import DeviceTable
from trivet_supervisor.placement import Placer
from trivet_supervisor.reconcile import Reconciler

sys.path.append(str(Path(__file__).parent))  # made_up_backend
from made_up_backend import MadeUp, device, placer

if TYPE_CHECKING:
    from conftest import Site

GONE = "nvidia-smi did not answer within 10 s"


@pytest.fixture
def both(site: Site) -> tuple[MadeUp, MadeUp]:
    """A GPU and a CPU; the deployment "chat" may use any, and serves on the GPU."""
    cuda, cpu = MadeUp("cuda", [device("cuda")]), MadeUp("cpu", [device("cpu")])
    with site.database.session() as session:
        version = register_model(session, open_model(find_demo_model()), "smol")
        create_deployment(session, name="chat", version=version)
    use(site, placer(cuda, cpu))
    site.settle()
    site.say(Phase.READY)
    assert (site.only().state, site.only().backend) == ("ready", "cuda")
    return cuda, cpu


def use(site: Site, places: Placer) -> None:
    """With what the devices are now, whatever was probed before."""
    places._devices = DeviceTable(places._host.backends, clock=iter(range(0, 10**9, 100)).__next__)
    site.reconciler = Reconciler(site.means, places)


def lose(cuda: MadeUp) -> None:
    cuda.devices = [replace(device, unusable_because=GONE) for device in cuda.devices]


def backends(site: Site) -> list[tuple[str, str | None]]:
    return [(i.state, i.backend) for i in site.instances() if i.state != "stopped"]


def reasons(site: Site) -> list[str]:
    with site.database.reading() as session:
        return [event.reason for event in list_events(session, deployment="chat")]


def test_a_gpu_that_is_away_for_a_moment_is_waited_for(site: Site, both: tuple[MadeUp, MadeUp]) -> None:
    cuda, _ = both
    found = cuda.devices
    lose(cuda)
    site.process.code = -9
    site.wait(20)
    instance = site.only()
    assert instance.state == "pending"
    assert (
        f"it served on cuda, which cannot take it now: backend cuda has no usable device here (cuda0: {GONE}"
        in (instance.reason)
    )
    cuda.devices = found
    site.wait(40)
    assert backends(site) == [("starting", "cuda")]


def test_after_a_minute_it_goes_elsewhere_and_says_why(site: Site, both: tuple[MadeUp, MadeUp]) -> None:
    cuda, _ = both
    lose(cuda)
    site.process.code = -9
    site.wait(130)
    assert backends(site) == [("starting", "cpu")]
    assert (
        f"on cpu (cpu0); passed over cuda: backend cuda has no usable device here (cuda0: {GONE})"
        in (reasons(site)[-1])
    )


def test_an_orderly_stop_and_start_waits_as_well(site: Site, both: tuple[MadeUp, MadeUp]) -> None:
    cuda, _ = both
    site.reconciler.shut_down(0)
    site.settle()
    site.process.code = 0
    site.settle()
    lose(cuda)
    use(site, site.reconciler._places)  # type: ignore[arg-type]
    site.wait(5)
    assert backends(site) == [("pending", None)]


def test_an_update_without_room_beside_the_old_makes_room_and_stays_on_its_backend(
    site: Site, both: tuple[MadeUp, MadeUp]
) -> None:
    cuda, _ = both
    cuda.need = 600  # of 1000: not twice
    site.change(update_deployment, "chat", Update(settings={"max_num_seqs": "2"}))
    with site.database.session() as session:
        row = session.merge(site.only())
        row.plan = {**(row.plan or {}), "total_bytes": 600}
    site.settle()
    assert sorted(backends(site)) == [("draining", "cuda"), ("pending", None)]
    site.process.code = 0
    site.wait(3)
    assert backends(site) == [("starting", "cuda")]


def test_one_whose_room_another_took_waits_for_it_too(site: Site, both: tuple[MadeUp, MadeUp]) -> None:
    cuda, _ = both
    site.process.code = -9
    cuda.need = 5000  # as if a stranger had taken what is free
    site.wait(20)
    assert backends(site) == [("pending", "cuda")]
    assert "it served on cuda, which cannot take it now: it needs 5000 bytes" in site.only().reason
    cuda.need = 100
    site.wait(40)
    assert backends(site) == [("starting", "cuda")]


def test_an_update_whose_room_others_hold_does_not_leave_its_backend(
    site: Site, both: tuple[MadeUp, MadeUp]
) -> None:
    cuda, _ = both
    cuda.need = 600
    with site.database.session() as session:
        row = session.merge(site.only())
        row.plan = {**(row.plan or {}), "total_bytes": 600}
        version = register_model(session, open_model(find_demo_model()), "smol")
        create_deployment(session, name="other", version=version, backend="cuda")
    cuda.need = 350
    site.settle()
    (other,) = [i for i in site.instances() if i.deployment.name == "other"]
    site.say(Phase.READY, other)
    cuda.need = 700
    site.change(update_deployment, "chat", Update(settings={"max_num_seqs": "2"}))
    site.keep_alive(10)
    chat = [(i.state, i.backend) for i in site.instances() if i.deployment.name == "chat"]
    assert chat == [("ready", "cuda"), ("pending", None)], "neither made room in vain nor moved to the CPU"


def test_one_more_replica_takes_the_next_backend_that_has_room(
    site: Site, both: tuple[MadeUp, MadeUp]
) -> None:
    cuda, _ = both
    cuda.need = 950
    site.change(set_replicas, "chat", 2)
    site.settle()
    assert backends(site) == [("ready", "cuda"), ("starting", "cpu")]


def test_a_replica_more_that_strangers_leave_no_room_waits_and_says_why_of_each_device(
    site: Site, both: tuple[MadeUp, MadeUp]
) -> None:
    cuda, cpu = both
    cuda.need = cpu.need = 5000  # as if others had taken it
    site.change(set_replicas, "chat", 2)
    site.settle()
    waits = site.instances(InstanceState.PENDING)[0]
    assert waits.reason.startswith("waits for room: ")
    assert "cuda: it needs 5000 bytes and" in waits.reason
    assert "cpu: it needs 5000 bytes and 1000 are free on cpu0" in waits.reason
    site.keep_alive(400, step_s=4)
    assert site.states() == ["ready", "pending"], "for as long as it is wanted"
    cpu.need = 100
    site.keep_alive(3)
    assert backends(site) == [("ready", "cuda"), ("starting", "cpu")]
