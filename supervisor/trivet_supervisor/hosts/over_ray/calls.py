"""What a supervisor asks the process that is in its Ray cluster: msgspec structs in MessagePack."""

from __future__ import annotations

import msgspec

from trivet_supervisor.hosts.agent_way import AgentAddress


class KeepAgents(msgspec.Struct, frozen=True, tag=True):
    """Have an agent run on every living node; answered by `hosts`."""

    site_key: str


class Claim(msgspec.Struct, frozen=True, tag=True):
    """Take resources of a host for an engine, one bundle a rank, so that Ray gives them to nobody else."""

    host: str
    lease: str
    resource: str
    num_ranks: int
    share: float  # of each device, 0 to 1
    wait_s: float  # until they are free; 0: it gets them when they are


class Release(msgspec.Struct, frozen=True, tag=True):
    """Give back what an engine had; harmless where it had nothing."""

    host: str
    lease: str


class ListClaims(msgspec.Struct, frozen=True, tag=True):
    """Of this site, on every host; answered by `claims`."""


Asked = KeepAgents | Claim | Release | ListClaims


class Host(msgspec.Struct, frozen=True):
    """One node. Without an agent there is a reason."""

    agent: AgentAddress | None = None
    trouble: str = ""
    resources: dict[str, float] = {}  # as the node declares them


class Reply(msgspec.Struct, frozen=True):
    """`failure` is empty where it went well."""

    failure: str = ""
    hosts: dict[str, Host] = {}  # by name
    claims: list[tuple[str, str]] = []  # host and lease
