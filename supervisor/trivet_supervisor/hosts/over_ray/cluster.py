"""A Ray cluster as a set of hosts: an actor a node, a placement group an engine. Only here is Ray imported.

What Ray knows of accelerators is their number, so a claim says how much of how many a plan takes on which
node; which ones they are stays the plan's, as on one host.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import time
from collections import Counter
from collections.abc import Iterable
from typing import Any

from trivet.errors import Unavailable
from trivet_supervisor.hosts.over_ray.agent import RayAgent
from trivet_supervisor.hosts.over_ray.calls import Claim, Host

KEEP_TIMEOUT_S = 40.0  # a worker process is started, then the agent
SMALLEST_SHARE = 0.0001  # that Ray counts
PINNED_SHARE = 0.001  # of the resource that stands for a node itself


class RayCluster:
    """Thread-safe, as Ray's driver is."""

    def __init__(self, address: str, site_key: str) -> None:
        """Raises: Unavailable where Ray is not installed, or no cluster answers at `address`."""
        try:
            import ray
            from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
        except ImportError as error:
            raise Unavailable(f"Ray cannot be imported: {error}") from error
        self._ray: Any = ray
        self._on_node: Any = NodeAffinitySchedulingStrategy
        self._site_key = site_key
        # Of its own: two sites in one cluster must not give back each other's claims.
        self._site = f"trivet-{hashlib.sha256(site_key.encode()).hexdigest()[:12]}"
        try:
            ray.init(
                address=address or "auto",
                namespace=self._site,
                log_to_driver=False,
                logging_level=logging.ERROR,
            )
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise Unavailable(
                f"no Ray cluster answers at {address or 'auto'}: {_first_line(error)}; start one with "
                "`ray start --head` on this host, and set ray_address"
            ) from error

    def keep_agents(self) -> dict[str, Host]:
        """An agent runs on every living node then, or it is said why not."""
        nodes, left_out = told_apart(self._ray.nodes())
        asked = {name: self._agent(node).keep.remote(self._site_key) for name, node in nodes.items()}
        deadline_s = time.monotonic() + KEEP_TIMEOUT_S
        return left_out | {
            name: self._kept(nodes[name], answer, max(0.0, deadline_s - time.monotonic()))
            for name, answer in asked.items()
        }

    def _kept(self, node: dict[str, Any], answer: Any, timeout_s: float) -> Host:
        errors = self._ray.exceptions
        try:
            host: Host = self._ray.get(answer, timeout=timeout_s)
        except errors.GetTimeoutError:
            return Host(trouble=f"Ray started no agent there within {KEEP_TIMEOUT_S:g} s")
        except errors.ActorUnavailableError:
            return Host(trouble="its agent is being started")
        except errors.RayActorError as error:  # it cannot be made: Trivet is not installed there, perhaps
            with contextlib.suppress(ValueError):
                self._ray.kill(self._ray.get_actor(_actor_name(node)), no_restart=True)
            return Host(trouble=f"Ray cannot start an agent there: {_last_line(error)}")
        except errors.RayError as error:
            return Host(trouble=f"Ray: {_last_line(error)}")
        return Host(host.agent, host.trouble, dict(node["Resources"]))

    def claim(self, claim: Claim) -> None:
        """Nothing is to be had of a host that is no node now. Raises: Unavailable where others have it."""
        node = told_apart(self._ray.nodes())[0].get(claim.host)
        if node is None:
            return
        share = max(SMALLEST_SHARE, round(claim.share, 4))
        bundle = {claim.resource: share, f"node:{node['NodeManagerAddress']}": PINNED_SHARE}
        group = self._ray.util.placement_group(
            [bundle] * claim.num_ranks,
            strategy="STRICT_PACK",
            name=self._group(claim.host, claim.lease),
            lifetime="detached",
        )
        if claim.wait_s > 0 and not group.wait(claim.wait_s):
            self._ray.util.remove_placement_group(group)
            have = f"{self._claimed(claim.host, claim.resource):g} of {node['Resources'][claim.resource]:g}"
            raise Unavailable(
                f"Ray has not {claim.num_ranks} x {share:g} {claim.resource} left on host {claim.host}, "
                f"where engines of this site have {have}; see `ray status` for what else the cluster runs"
            )

    def _claimed(self, host: str, resource: str) -> float:
        return sum(
            float(bundle.get(resource, 0.0))
            for group in self._groups()
            if group["name"].startswith(f"{self._site}/{host}/") and group["state"] == "CREATED"
            for bundle in group["bundles"].values()
        )

    def release(self, host: str, lease: str) -> None:
        """Give back what `claim` took."""
        with contextlib.suppress(ValueError):  # there is none of this name
            self._ray.util.remove_placement_group(
                self._ray.util.get_placement_group(self._group(host, lease))
            )

    def claims(self) -> list[tuple[str, str]]:
        """Host and lease of each."""
        names = [str(group["name"]) for group in self._groups() if group["state"] != "REMOVED"]
        parts = [name.split("/") for name in names if name.startswith(f"{self._site}/")]
        return [(part[1], part[2]) for part in parts if len(part) == 3]

    def _groups(self) -> list[dict[str, Any]]:
        return list(self._ray.util.placement_group_table().values())

    def _group(self, host: str, lease: str) -> str:
        return f"{self._site}/{host}/{lease}"

    def _agent(self, node: dict[str, Any]) -> Any:
        return (
            self._ray.remote(RayAgent)
            .options(
                name=_actor_name(node),
                get_if_exists=True,
                lifetime="detached",
                max_restarts=-1,
                num_cpus=0,
                scheduling_strategy=self._on_node(str(node["NodeID"]), soft=False),
            )
            .remote(str(node["NodeName"]), str(node["NodeManagerAddress"]))
        )


def told_apart(nodes: Iterable[dict[str, Any]]) -> tuple[dict[str, dict[str, Any]], dict[str, Host]]:
    """The living nodes by name, as `ray.nodes` has them; and those that no host is, with the reason."""
    living = [node for node in nodes if node["Alive"]]
    count = Counter(str(node["NodeName"]) for node in living)
    named: dict[str, dict[str, Any]] = {}
    left_out: dict[str, Host] = {}
    for node in living:
        name = str(node["NodeName"])
        if count[name] > 1:
            left_out[name] = Host(
                trouble=f"Ray has {count[name]} living nodes of this name: where one was started anew, Ray "
                "notices within half a minute that the other is gone; else give each its own --node-name"
            )
        elif "/" in name or name.startswith("."):
            left_out[name] = Host(
                trouble="the name of a host has no '/' and no '.' in front: start Ray there with another "
                "--node-name"
            )
        else:
            named[name] = node
    return named, left_out


def _actor_name(node: dict[str, Any]) -> str:
    return f"agent-{node['NodeName']}-{node['NodeID'][:8]}"


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]


def _last_line(error: Exception) -> str:
    return str(error).strip().rpartition("\n")[2]
