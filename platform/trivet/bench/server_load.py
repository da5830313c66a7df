"""Drives a server over HTTP: one thread, one event loop, a callback a chunk.

The generator shares the machine with the server in most of our measurements, so its own CPU time is part
of the report (`client_cpu_us_per_token`). At 32 streams of our own server that is 22 to 27 us a token: 1.5 %
of one core at 560 tokens/s (2 cores of a Zen 4, Python 3.11). A thread a stream over the client library took
67. Connections are kept alive, as clients keep them; proxies of the environment are not used.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from trivet.bench.arrivals import Arrivals
from trivet.bench.load import LoadRun
from trivet.bench.prompts import Form, Prompt
from trivet.bench.server_stream import ServerStream
from trivet.bench.target import Target
from trivet.bench.timeline import Timeline
from trivet.bench.workload import Turn, Workload

CONNECT_TIMEOUT_S = 10.0
FIRST_ID, LAST_ID = 300, 8000


class ServerLoad:
    """A server as a load (`trivet.bench.load.Load`). Raises: ConfigError where the URL is none.

    The server does not tell the size of its vocabulary; every model's is larger than `LAST_ID`. Ids below
    `FIRST_ID` are special tokens and single bytes.
    """

    def __init__(self, target: Target, sampling: Mapping[str, object], form: Form) -> None:
        self.form = form
        self.id_range = (FIRST_ID, LAST_ID)
        self._target = target
        self._address = target.address
        self._sampling = sampling

    def run(
        self,
        workload: Workload,
        arrivals: Arrivals,
        rng: np.random.Generator,
        on_done: Callable[[], object],
    ) -> LoadRun:
        """Failures are in the timelines."""
        driver = _Driver(self._target, self._address, self._sampling, on_done)
        timelines, cpu_s = asyncio.run(driver.run(workload, arrivals, rng))
        num_tokens = sum(t.num_tokens for t in timelines) or 1
        return LoadRun(timelines, {"client_cpu_us_per_token": cpu_s / num_tokens * 1e6})


class _Driver:
    """One run. Idle connections wait in a pool."""

    def __init__(
        self,
        target: Target,
        address: tuple[str, int],
        sampling: Mapping[str, object],
        on_done: Callable[[], object],
    ) -> None:
        self._target = target
        self._address = address
        self._tls = target.tls
        self._sampling = sampling
        self._on_done = on_done
        self._idle: list[ServerStream] = []

    async def run(
        self, workload: Workload, arrivals: Arrivals, rng: np.random.Generator
    ) -> tuple[list[Timeline], float]:
        """The timelines, and the CPU time in seconds that this process took for them."""
        try:
            for turn in workload.warm_up:
                await self._ask(turn.prompt, turn.max_tokens, time.perf_counter(), keeps_text=False)
            places = asyncio.Semaphore(arrivals.concurrency or len(workload.conversations))
            offsets_s = arrivals.offsets_s(len(workload.conversations), rng)
            start, cpu = time.perf_counter(), time.process_time()
            talks = [
                self._converse(turns, places, None if arrivals.rate is None else start + offset_s)
                for turns, offset_s in zip(workload.conversations, offsets_s, strict=True)
            ]
            timelines = [timeline for talk in await asyncio.gather(*talks) for timeline in talk]
            return timelines, time.process_time() - cpu
        finally:
            for stream in self._idle:
                stream.close()

    async def _converse(
        self, turns: Sequence[Turn], places: asyncio.Semaphore, due_s: float | None
    ) -> list[Timeline]:
        """`due_s` None: due as soon as there is a place."""
        if due_s is not None:
            await asyncio.sleep(due_s - time.perf_counter())
        timelines: list[Timeline] = []
        async with places:
            due_s = time.perf_counter() if due_s is None else due_s
            prompt = turns[0].prompt
            for number, turn in enumerate(turns, start=1):
                has_more = number < len(turns)
                timeline, text = await self._ask(prompt, turn.max_tokens, due_s, keeps_text=has_more)
                timelines.append(timeline)
                self._on_done()
                if not has_more:
                    break
                if not timeline.is_complete:
                    timelines += self._unasked(turns[number:])
                    break
                prompt = prompt.answered(text, ()).then(turns[number].prompt)
                due_s = time.perf_counter()
        return timelines

    def _unasked(self, turns: Sequence[Turn]) -> list[Timeline]:
        """Turns of a conversation that has broken: nobody can ask them, and they count as failed."""
        now = time.perf_counter()
        timelines = [Timeline(now, turn.max_tokens) for turn in turns]
        for timeline in timelines:
            timeline.fail(now, "an earlier turn of the conversation failed")
            self._on_done()
        return timelines

    async def _ask(
        self, prompt: Prompt, max_tokens: int, due_s: float, *, keeps_text: bool
    ) -> tuple[Timeline, str]:
        timeline = Timeline(due_s, max_tokens, num_prompt_tokens=len(prompt.ids or ()))
        request = self._target.request(prompt, max_tokens, self._sampling)
        try:
            stream = await self._connection()
        except (OSError, TimeoutError) as error:
            # Of a name with several addresses asyncio tells all failures in one text, without `strerror`.
            cause = error.strerror or str(error) or "timed out"
            timeline.fail(time.perf_counter(), f"no connection: {cause}")
            return timeline, ""
        done = stream.send(request, timeline, keeps_text=keeps_text)
        loop = asyncio.get_running_loop()
        limit = loop.call_later(
            self._target.timeout_s, stream.give_up, f"no complete answer in {self._target.timeout_s:g} s"
        )
        await done
        limit.cancel()
        if stream.is_open:
            self._idle.append(stream)
        return timeline, "".join(stream.text)

    async def _connection(self) -> ServerStream:
        while self._idle:
            stream = self._idle.pop()
            if stream.is_open:
                return stream
        host, port = self._address
        loop = asyncio.get_running_loop()
        connect = loop.create_connection(
            ServerStream, host, port, ssl=self._tls, server_hostname=host if self._tls else None
        )
        _, stream = await asyncio.wait_for(connect, CONNECT_TIMEOUT_S)
        return stream
