"""The way to the agent of another host: tcp, where both sides prove themselves."""

from __future__ import annotations

import msgspec
import zmq

from trivet.endpoints import ClientKeys
from trivet_supervisor.hosts.agent_calls import HostSilent


class AgentAddress(msgspec.Struct, frozen=True):
    """Where an agent is reached."""

    address: str
    port: int
    key: str  # its public key, Z85


def call_agent(
    context: zmq.Context[zmq.Socket[bytes]],
    agent: AgentAddress,
    keys: ClientKeys,
    message: bytes,
    timeout_s: float,
) -> bytes:
    """One message and its answer, on a socket of its own: any thread may ask.

    Raises: HostSilent within `timeout_s`; also where the agent admits another key than ours.
    """
    host = f"[{agent.address}]" if ":" in agent.address else agent.address
    try:
        with context.socket(zmq.REQ) as socket:
            socket.linger = 0
            socket.ipv6 = ":" in agent.address
            socket.curve_publickey, socket.curve_secretkey = keys.public.encode(), keys.secret.encode()
            socket.curve_serverkey = agent.key.encode()
            socket.connect(f"tcp://{host}:{agent.port}")
            socket.send(message)
            if socket.poll(int(timeout_s * 1000)):
                return socket.recv()
    except zmq.ZMQError as error:
        raise HostSilent(f"{host}:{agent.port} cannot be asked: {error}") from error
    raise HostSilent(f"no answer from {host}:{agent.port} within {timeout_s:g} s")
