"""An engine process without a model: it speaks messages.py over real sockets and behaves as told.

`FAKE_ENGINE` chooses: "good", "fails" (says why, exits 4), "crashes" (kills itself while loading), "deaf"
(obeys neither messages nor SIGTERM), "shy" (once ready it beats only when spoken to).
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import msgspec
import zmq

from trivet.config import engine_address
from trivet.messages import Beat, ControlRequest, Drain, LaunchOrder, Phase, Stop

BEAT_S = 0.1


def main() -> int:
    order = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=LaunchOrder)
    behaviour = os.environ["FAKE_ENGINE"]
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    beats, control = context.socket(zmq.XPUB), context.socket(zmq.ROUTER)
    beats.bind(engine_address(order.run_dir, order.instance_id, "beat"))
    control.bind(engine_address(order.run_dir, order.instance_id, "ctl"))
    print(f"fake engine {behaviour}", flush=True)
    if behaviour == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)

    def say(phase: Phase, reason: str = "") -> None:
        beats.send(
            msgspec.msgpack.encode(Beat(order.instance_id, order.lease, os.getpid(), 1, phase, reason))
        )

    beats.poll()  # the subscriber has connected and hears what is said from now on
    say(Phase.LOADING)
    time.sleep(BEAT_S)
    if behaviour == "crashes":
        os.kill(os.getpid(), signal.SIGKILL)
    if behaviour == "fails":
        say(Phase.FAILED, "tensor x is missing")
        time.sleep(3 * BEAT_S)
        return 4
    has_said_ready = False
    while True:
        if not (behaviour == "shy" and has_said_ready):
            say(Phase.READY)
        if control.poll(int(BEAT_S * 1000)):
            request = msgspec.msgpack.decode(control.recv_multipart()[-1], type=ControlRequest)
            if isinstance(request, (Drain, Stop)) and behaviour != "deaf":
                say(Phase.STOPPING)
                return 0
            say(Phase.READY)
            has_said_ready = True


if __name__ == "__main__":
    sys.exit(main())
