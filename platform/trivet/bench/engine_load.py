"""Drives an engine in this process, without HTTP, with detokenising as in serving."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from trivet.bench.arrivals import Arrivals
from trivet.bench.kv_watch import KvWatch
from trivet.bench.load import LoadRun
from trivet.bench.prompts import Form, Prompt
from trivet.bench.timeline import Timeline
from trivet.bench.workload import Turn, Workload
from trivet.engine.sequence import Sequence as EngineSequence
from trivet.errors import Overloaded, RequestError
from trivet.sampling_params import SamplingParams
from trivet.text.text_stream import TextStream

if TYPE_CHECKING:
    from trivet.engine.commit import Update
    from trivet.llm import LLM


class EngineLoad:
    """An engine as a load (`trivet.bench.load.Load`). Takes prompts of every form."""

    def __init__(self, llm: LLM, sampling: SamplingParams) -> None:
        self.form: Form = "ids"
        self.id_range = (0, llm.engine.tokenizer.vocab_size)
        self._llm = llm
        self._sampling = sampling

    def run(
        self,
        workload: Workload,
        arrivals: Arrivals,
        rng: np.random.Generator,
        on_done: Callable[[], object],
    ) -> LoadRun:
        """A request that the engine refuses or fails has the reason in its timeline."""
        warm_up = Workload(tuple((turn,) for turn in workload.warm_up))
        _Run(self._llm, self._sampling, lambda: None).drive(warm_up, Arrivals(), rng)
        run = _Run(self._llm, self._sampling, on_done)
        run.drive(workload, arrivals, rng)
        return LoadRun(run.timelines, run.watch.figures())


@dataclass(slots=True)
class _Talk:
    """A conversation in progress."""

    turns: Sequence[Turn]
    due_s: float
    number: int = 0  # of the present turn, from 0
    prompt: Prompt = field(default_factory=Prompt)  # with everything that came before
    timeline: Timeline = field(default_factory=lambda: Timeline(0.0, 0))
    sequence: EngineSequence | None = None  # of the present turn, while it waits for the engine's queue
    text: str = ""


class _Run:
    """One run on a shared engine."""

    def __init__(self, llm: LLM, sampling: SamplingParams, on_done: Callable[[], object]) -> None:
        self.timelines: list[Timeline] = []
        self.watch = KvWatch(llm.engine.core)
        self._llm = llm
        self._core = llm.engine.core
        self._sampling = sampling
        self._on_done = on_done
        self._num_asked = 0
        self._waiting: deque[_Talk] = deque()  # have a place and wait for room in the engine's queue
        self._open: dict[str, _Talk] = {}  # in the engine, by request id

    def drive(self, workload: Workload, arrivals: Arrivals, rng: np.random.Generator) -> None:
        """Until every request has ended. Between steps, whatever has become due is admitted."""
        num_places = arrivals.concurrency or len(workload.conversations)
        offsets_s = arrivals.offsets_s(len(workload.conversations), rng)
        start = last = time.perf_counter()
        due = deque(
            _Talk(turns, start + offset_s)
            for turns, offset_s in zip(workload.conversations, offsets_s, strict=True)
        )
        while due or self._waiting or self._core.has_work:
            while due and due[0].due_s <= last and len(self._open) + len(self._waiting) < num_places:
                self._begin(due.popleft(), None if arrivals.rate is not None else last)
            self._admit()
            if not self._core.has_work and due:
                time.sleep(max(0.0, due[0].due_s - time.perf_counter()))
                last = time.perf_counter()
                continue
            updates = self._core.step()
            now = time.perf_counter()
            self.watch.observe(now - last)
            last = now
            for update in updates:
                self._take(update, now)

    def _begin(self, talk: _Talk, due_s: float | None) -> None:
        """`due_s`: in the closed loop a conversation is due when it gets its place."""
        if due_s is not None:
            talk.due_s = due_s
        talk.prompt = talk.turns[0].prompt
        self._ask(talk)

    def _ask(self, talk: _Talk) -> None:
        talk.timeline = Timeline(talk.due_s, talk.turns[talk.number].max_tokens)
        self.timelines.append(talk.timeline)
        self._waiting.append(talk)

    def _admit(self) -> None:
        while self._waiting:
            talk = self._waiting[0]
            now = time.perf_counter()
            try:
                sequence = talk.sequence = talk.sequence or self._sequence(talk)
                self._core.add(sequence)
            except Overloaded:
                return  # the engine's queue is full; the rest stays in ours
            except RequestError as error:
                self._waiting.popleft()
                self._fail(talk, now, error.message)
                continue
            self._waiting.popleft()
            talk.sequence = None
            talk.timeline.sent_s = now
            talk.timeline.num_prompt_tokens = sequence.num_prompt_tokens
            self._open[sequence.request_id] = talk

    def _sequence(self, talk: _Talk) -> EngineSequence:
        ids = self._encode(talk.prompt)
        params = msgspec.structs.replace(self._sampling, max_tokens=talk.timeline.max_tokens)
        text = TextStream(self._llm.get_tokenizer(), ids, params)
        self._num_asked += 1
        return EngineSequence(f"bench-{self._num_asked}", ids, params, text=text)

    def _encode(self, prompt: Prompt) -> list[int]:
        if prompt.ids is not None:
            return list(prompt.ids)
        if prompt.text is not None:
            return self._llm.get_tokenizer().encode(prompt.text, add_special_tokens=True)
        ids: list[int] = self._llm.chat_prompt(prompt.messages or ())["prompt_token_ids"]
        return ids

    def _take(self, update: Update, now: float) -> None:
        talk = self._open[update.sequence.request_id]
        talk.timeline.add(now, len(update.token_ids))
        talk.text += update.text
        if update.finish_reason is None:
            return
        del self._open[update.sequence.request_id]
        talk.timeline.num_cached_tokens = update.sequence.num_cached_tokens
        if update.failure is not None:
            self._fail(talk, now, update.failure.message)
            return
        talk.timeline.finish(now)
        self._on_done()
        if talk.number + 1 < len(talk.turns):
            talk.number += 1
            answered = talk.prompt.answered(talk.text, update.sequence.output_token_ids)
            talk.prompt, talk.text = answered.then(talk.turns[talk.number].prompt), ""
            talk.due_s = now
            self._ask(talk)

    def _fail(self, talk: _Talk, now: float, cause: str) -> None:
        """The rest of a conversation fails with its turn."""
        talk.timeline.fail(now, cause)
        self._on_done()
        for turn in talk.turns[talk.number + 1 :]:
            timeline = Timeline(now, turn.max_tokens)
            timeline.fail(now, "an earlier turn of the conversation failed")
            self.timelines.append(timeline)
            self._on_done()
