"""`python -m trivet_supervisor.hosts.over_ray.bridge ADDRESS SITE_KEY SOCKET`: what is in Ray for a site.

A Ray driver ends its whole process when the cluster's head stays away, handles signals its own way and takes
some hundred megabytes. Here that concerns nobody but this process, which is started again. It ends with its
parent.
"""

from __future__ import annotations

import logging
import os
import sys
import threading

import msgspec
import zmq

from trivet.errors import Unavailable
from trivet_supervisor.hosts.answering import Answering
from trivet_supervisor.hosts.over_ray.calls import Asked, Claim, KeepAgents, ListClaims, Release, Reply
from trivet_supervisor.hosts.over_ray.cluster import RayCluster

logger = logging.getLogger(__name__)

NUM_THREADS = 8


class Bridge:
    """Answers what it is asked out of a cluster."""

    def __init__(self, cluster: RayCluster) -> None:
        self._cluster = cluster
        self._decoder = msgspec.msgpack.Decoder(Asked)

    def answer(self, message: bytes) -> bytes:
        """What is wrong is an answer, too."""
        try:
            reply = self._answer(self._decoder.decode(message))
        except Unavailable as error:
            reply = Reply(failure=str(error))
        except Exception as error:  # a border: Ray raises what it likes, and who asks must hear of it
            logger.exception("a call failed")
            reply = Reply(failure=f"{type(error).__name__}: {error}")
        return msgspec.msgpack.encode(reply)

    def _answer(self, asked: Asked) -> Reply:
        match asked:
            case KeepAgents():
                return Reply(hosts=self._cluster.keep_agents())
            case Claim():
                self._cluster.claim(asked)
                return Reply()
            case Release():
                self._cluster.release(asked.host, asked.lease)
                return Reply()
            case ListClaims():
                return Reply(claims=self._cluster.claims())


def end_with_parent() -> None:
    """Its end closes this process's standard input."""

    def wait() -> None:
        while os.read(0, 4096):
            pass
        os._exit(0)

    threading.Thread(target=wait, name="parent-watch", daemon=True).start()


def main() -> int:
    """Entry of the process."""
    address, site_key, socket_address = sys.argv[1:]
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s", stream=sys.stderr
    )
    end_with_parent()
    try:
        cluster = RayCluster(address, site_key)
    except Unavailable as error:
        logger.error("%s", error)
        return 3
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
    outside = context.socket(zmq.ROUTER)
    outside.bind(socket_address)
    Answering(context, outside, Bridge(cluster).answer, NUM_THREADS).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
