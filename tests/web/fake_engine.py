"""An engine process without a model: speaks messages.py, makes the words "w0 w1 w2 ...".

Token n of a sequence has the id 100 + n. A sequence ends by length, at `stop` strings that are one word,
or when it is aborted. With an adapter `sql` its words are "sql0 sql1 ...". Options set the pace.
"""

from __future__ import annotations

import argparse
import os
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import zmq

from trivet.config import engine_address
from trivet.engine.batch_view import BatchView, Lane
from trivet.messages import (
    Abort,
    Beat,
    EngineLoad,
    EngineRequest,
    Failure,
    FinishReason,
    Look,
    Phase,
    Piece,
    ResetPrefixCache,
    StepReport,
    Submit,
    TokenLogprob,
)

DEFAULT_LENGTH = 64
MAX_PIECES = 200  # of a script, nearly


@dataclass
class Running:
    client: bytes
    submit: Submit
    starts_s: float
    count: int = 0
    script: str | None = None
    piece_length: int = 3  # of the script


@dataclass
class FakeEngine:
    options: argparse.Namespace
    running: list[Running] = field(default_factory=list)
    finished: dict[str, int] = field(default_factory=dict)
    prompt_tokens: int = 0
    generated: int = 0

    def load(self) -> EngineLoad:
        return EngineLoad(
            num_running=len(self.running),
            num_tokens_outstanding=sum((r.submit.params.max_tokens or 0) - r.count for r in self.running),
            kv_usage=min(1.0, len(self.running) / 100),
            prompt_tokens=self.prompt_tokens,
            generation_tokens=self.generated,
            num_finished=dict(self.finished),
        )

    def beat_for_ever(self) -> None:
        socket = zmq.Context.instance().socket(zmq.PUB)
        socket.bind(engine_address(self.options.run_dir, self.options.instance, "beat"))
        number = 0
        while True:
            number += 1
            phase = Phase(self.options.phase)
            beat = Beat(
                self.options.instance,
                "lease",
                os.getpid(),
                number,
                phase,
                load=self.load(),
                adapters=tuple(filter(None, self.options.adapters.split(","))),
            )
            socket.send(msgspec.msgpack.encode(beat))
            time.sleep(self.options.beat_s)

    def serve_for_ever(self) -> None:
        socket = zmq.Context.instance().socket(zmq.ROUTER)
        socket.sndhwm = 0
        socket.bind(engine_address(self.options.run_dir, self.options.instance, "sock"))
        decoder = msgspec.msgpack.Decoder(EngineRequest)
        next_step_s = time.monotonic()
        while True:
            wait_s = max(0.0, next_step_s - time.monotonic()) if self.running else 1.0
            if socket.poll(int(wait_s * 1000)):
                client, data = socket.recv_multipart()
                self.take(socket, client, decoder.decode(data))
            if self.running and time.monotonic() >= next_step_s:
                self.step(socket)
                next_step_s = time.monotonic() + self.options.step_s

    def take(self, socket: zmq.Socket[bytes], client: bytes, request: EngineRequest) -> None:
        if self.options.refuse and not isinstance(request, Abort):
            failure = Failure(
                self.options.refuse_message,
                self.options.refuse_code,
                int(self.options.refuse),
                7,
                self.options.refuse_param,
            )
            piece = Piece(request.request_id, "", [], FinishReason.ERROR, failure=failure)
            socket.send_multipart([client, msgspec.msgpack.encode(StepReport([piece], self.load()))])
        elif isinstance(request, ResetPrefixCache):
            piece = Piece(request.request_id, "", [], FinishReason.STOP, cached_tokens=96)
            socket.send_multipart([client, msgspec.msgpack.encode(StepReport([piece], self.load()))])
        elif isinstance(request, Look):
            view = BatchView(4, 16, 8, 0, 64, [Lane(1, "r-1", 20, 0, 20, 1, 60, 0, 2)], 1, [1, 1, *[-1] * 6])
            text = msgspec.json.encode(view).decode()
            piece = Piece(request.request_id, text, [], FinishReason.STOP)
            socket.send_multipart([client, msgspec.msgpack.encode(StepReport([piece], self.load()))])
        elif isinstance(request, Abort):
            kept = [
                r for r in self.running if (r.client, r.submit.request_id) != (client, request.request_id)
            ]
            is_one = len(kept) < len(self.running)
            self.running = kept  # before it is counted: a beat may come between
            if is_one:
                self.count("abort")
                if self.options.aborts:
                    with open(self.options.aborts, "a") as file:
                        file.write(f"{time.monotonic()}\n")
        elif self.options.dies_of is not None and request.params.seed == self.options.dies_of:
            os._exit(1)
        else:
            self.prompt_tokens += len(request.prompt_token_ids)
            begins_late = request.params.prompt_logprobs is not None
            first_s = self.options.scored_s if begins_late else self.options.first_s
            script = Path(self.options.says).read_text() if self.options.says else None
            one = Running(client, request, time.monotonic() + first_s, script=script)
            one.piece_length = max(3, len(script or "") // MAX_PIECES)
            self.running.append(one)

    def step(self, socket: zmq.Socket[bytes]) -> None:
        by_client: dict[bytes, list[Piece]] = {}
        now = time.monotonic()
        for one in [r for r in self.running if now >= r.starts_s]:
            by_client.setdefault(one.client, []).append(self.piece(one))
        for client, pieces in by_client.items():
            socket.send_multipart([client, msgspec.msgpack.encode(StepReport(pieces, self.load()))])

    def piece(self, one: Running) -> Piece:
        params, token_id = one.submit.params, 100 + one.count
        word = f"{one.submit.adapter or 'w'}{one.count} "
        one.count += 1
        self.generated += 1
        length = DEFAULT_LENGTH if params.max_tokens is None else params.max_tokens
        reason, stop_reason, text = None, None, word
        if one.script is not None:
            text, rest = one.script[: one.piece_length], one.script[one.piece_length :]
            one.script, reason = rest, None if rest else FinishReason.STOP
        if one.script is None and word.strip() in params.stop:
            reason, stop_reason, text = FinishReason.STOP, word.strip(), ""
        elif one.count >= length:
            reason = FinishReason.LENGTH
        elif one.submit.deadline_s is not None and time.monotonic() >= one.submit.deadline_s:
            reason, stop_reason = FinishReason.LENGTH, "deadline"
        if reason is not None:
            self.running.remove(one)
            self.count(str(reason))
        logprobs = None
        if params.logprobs is not None:
            top = [(token_id + k, -0.5 - k) for k in range(params.logprobs)]
            logprobs = [TokenLogprob(token_id, -0.5, 1, top)]
        prompt_logprobs = None
        if params.prompt_logprobs is not None and one.count == 1:
            prompt_logprobs = [TokenLogprob(token, -1.5, 2, []) for token in one.submit.prompt_token_ids[1:]]
        return Piece(
            one.submit.request_id,
            text,
            [token_id],
            reason,
            stop_reason,
            prompt_tokens=len(one.submit.prompt_token_ids),
            completion_tokens=one.count,
            logprobs=logprobs,
            prompt_logprobs=prompt_logprobs,
            queue_s=self.options.queue_s if one.count == 1 else None,
        )

    def count(self, reason: str) -> None:
        self.finished[reason] = self.finished.get(reason, 0) + 1


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("run_dir")
    parser.add_argument("instance")
    parser.add_argument("--step-s", type=float, default=0.001)
    parser.add_argument("--first-s", type=float, default=0.0)
    parser.add_argument("--queue-s", type=float, default=0.0, help="told, not waited for")
    parser.add_argument("--scored-s", type=float, default=0.0, help="where the prompt is scored")
    parser.add_argument("--beat-s", type=float, default=0.05)
    parser.add_argument("--phase", default="ready")
    parser.add_argument("--refuse", default="")
    parser.add_argument("--aborts", default="", help="a file for the moments of aborts, CLOCK_MONOTONIC")
    parser.add_argument("--says", default="", help="a file with the answer, read anew for each request")
    parser.add_argument("--refuse-code", default="overloaded")
    parser.add_argument("--refuse-message", default="the queue holds 0 requests; retry later")
    parser.add_argument("--refuse-param")
    parser.add_argument("--adapters", default="", help="names, with commas")
    parser.add_argument("--dies-of", type=int, help="a request with this seed")
    engine = FakeEngine(parser.parse_args())
    threading.Thread(target=engine.beat_for_ever, daemon=True).start()
    engine.serve_for_ever()


if __name__ == "__main__":
    main()
