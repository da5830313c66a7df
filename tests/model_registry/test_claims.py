from __future__ import annotations

from dataclasses import replace
from typing import Any

from trivet.contract import DeviceInfo
from trivet_registry.claims import ledger_of
from trivet_registry.instance_state import InstanceState
from trivet_registry.tables import Deployment, Instance

S = InstanceState
GPU = DeviceInfo(
    kind="cuda",
    index=0,
    uid="gpu0",
    name="",
    arch="",
    total_bytes=100,
    free_bytes=90,
    dtypes=frozenset({"bf16"}),
)


def instance(state: S, size: int, uids: tuple[str, ...] = ("gpu0",), backend: str = "cuda") -> Instance:
    plan: dict[str, Any] = {"total_bytes": size}
    deployment = Deployment(name="qwen")
    return Instance(
        id="i", deployment=deployment, state=state, backend=backend, device_uids=list(uids), plan=plan
    )


def test_who_holds_a_device_is_named_with_what_it_holds() -> None:
    ledger = ledger_of([instance(S.READY, 3 << 29)])
    assert ledger.holders_on([GPU]) == "qwen (i, 1.50 GiB)"


def test_an_instance_that_still_loads_has_a_claim_to_free_memory() -> None:
    ledger = ledger_of([instance(S.LOADING, 30)])
    assert ledger.left_on(GPU).free_bytes == 60


def test_memory_that_is_taken_already_is_not_counted_twice() -> None:
    ledger = ledger_of([instance(S.READY, 10)])
    assert ledger.left_on(GPU).free_bytes == 90


def test_promises_never_exceed_the_device() -> None:
    ledger = ledger_of([instance(S.READY, 70)])
    assert ledger.left_on(GPU).free_bytes == 30
    assert ledger_of([instance(S.READY, 170)]).left_on(GPU).free_bytes == 0


def test_only_instances_that_may_have_a_process_count() -> None:
    ledger = ledger_of([instance(state, 50) for state in (S.PENDING, S.PLACING, S.FAILED, S.STOPPED)])
    assert not ledger.on(GPU)


def test_every_device_of_an_instance_carries_its_plan() -> None:
    ledger = ledger_of([instance(S.STARTING, 5, ("gpu0", "gpu1")), instance(S.LOST, 7, ("gpu1",))])
    assert [ledger.reserved_on(gpu) for gpu in (GPU, replace(GPU, uid="gpu1"))] == [5, 12]


def test_equal_uids_of_two_backends_are_two_devices() -> None:
    ledger = ledger_of([instance(S.STARTING, 5, ("host",), "null")])
    host = replace(GPU, uid="host")
    assert [ledger.reserved_on(replace(host, kind=kind)) for kind in ("null", "cuda")] == [5, 0]


def test_the_memory_of_those_who_are_thought_gone_is_free() -> None:
    """What they have taken the probe does not see; what they only have a claim to it does."""
    one, other = instance(S.READY, 10), instance(S.LOADING, 30)
    one.id = "one"
    assert ledger_of([one, other], {"one"}).left_on(GPU).free_bytes == 70
    assert ledger_of([one, other], {"i"}).left_on(GPU).free_bytes == 90
    assert not ledger_of([one], {"one"}).on(GPU)
    assert ledger_of([one], {"one"}).without_all().left_on(GPU).free_bytes == 100


def test_a_row_that_is_half_written_has_no_claim_and_breaks_no_other() -> None:
    broken = instance(S.READY, 5)
    broken.device_uids = None  # type: ignore[assignment]  # as a hand may have left it
    unplanned = instance(S.READY, 5)
    unplanned.plan = {"parts": []}
    assert ledger_of([broken, unplanned, instance(S.READY, 7)]).reserved_on(GPU) == 7


def test_an_engine_on_a_device_with_its_own_memory_has_a_claim_to_its_hosts_too() -> None:
    host = replace(GPU, kind="cpu", uid="host", is_host_memory=True)
    one, far = instance(S.LOADING, 30), instance(S.READY, 30)
    one.plan, far.plan = {"total_bytes": 30, "host_bytes": 20}, {"total_bytes": 30, "host_bytes": 40}
    far.host = "node2"
    ledger = ledger_of([one, far])
    assert (ledger.reserved_on(host), ledger.left_on(host).free_bytes) == (20, 70)
    elsewhere = replace(host, host="node2", uid="node2/host")
    assert (ledger.reserved_on(elsewhere), ledger.left_on(elsewhere).free_bytes) == (40, 60)
    assert ledger.reserved_on(GPU) == 60
    assert ledger.holders_on([host]) == "qwen (i, 0.00 GiB)"


def test_what_was_reserved_since_is_seen() -> None:
    one, other = instance(S.LOADING, 30), instance(S.LOADING, 30)
    other.id = "other"
    before, after = ledger_of([one]), ledger_of([one, other])
    assert after.has_more_than(before)
    assert not before.has_more_than(after)
    one.state = S.READY
    assert not ledger_of([one]).has_more_than(before)
