"""How what an engine reports reaches those who read it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import zmq

from trivet.endpoints import Endpoints
from trivet.messages import EngineLoad, Piece, StepReport
from trivet_web.engines.engine_link import PIECES_AT_ONCE, EngineLink


def report(num_pieces: int) -> bytes:
    pieces = [Piece(f"r{index}", "x", [1]) for index in range(num_pieces)]
    return msgspec.msgpack.encode(StepReport(pieces, EngineLoad()))


def test_readers_have_their_turn_within_a_step_but_not_within_a_backlog(tmp_path: Path) -> None:
    address = "inproc://engine"  # a message is there as soon as it is sent
    served: list[float] = []
    with zmq.Context() as context, context.socket(zmq.DEALER) as engine:
        engine.linger = 0
        engine.bind(address)
        link = EngineLink(context, "i", Endpoints(address, address, address), tmp_path, 0.0, served.append)
        try:
            for now, num_reports in ((1.0, 1), (2.0, 3)):
                for _ in range(num_reports):
                    engine.send(report(3 * PIECES_AT_ONCE))
                assert link.on_reports(now)
        finally:
            link.close()
    assert served == [1.0] * 3 + [2.0] * 3
