"""The agent of a far host: `python far_agent.py NAME ADDRESS PORT`, in its network and environment."""

from __future__ import annotations

import logging
import sys

import zmq

from trivet.config import load_settings
from trivet_supervisor.hosts.host_agent import HostAgent


def main() -> None:
    name, address, port = sys.argv[1:]
    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    agent = HostAgent(name, address, load_settings())
    socket = zmq.Context.instance().socket(zmq.ROUTER)
    socket.bind(f"tcp://{address}:{port}")
    while True:
        *envelope, message = socket.recv_multipart()
        socket.send_multipart([*envelope, agent.answer(message)])


if __name__ == "__main__":
    main()
