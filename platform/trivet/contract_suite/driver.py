"""Runs batches directly on a runner, without the engine core: any chunking, any mix, any depth.

It keeps the core's half of the contract and makes the most of it: block ids are shuffled, a freed block is
the next to be given away, and every array of a step is filled with zeros once its `collect` has returned.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from trivet.contract import BlockCopy, MemoryPlan, Runner, StepOutput
from trivet.contract_suite.sampling_oracle import RowSampling
from trivet.contract_suite.sequence_blocks import SequenceBlocks
from trivet.contract_suite.steps import DrivenSequence, Step, Work, arrays_of, build_batch, build_sampling
from trivet.engine.agreement import Scores

Int32 = NDArray[np.int32]
GREEDY = RowSampling()


class Driver(SequenceBlocks):
    """Drives one runner that is loaded, allocated and warm."""

    def __init__(
        self, runner: Runner, plan: MemoryPlan, *, vocab_size: int, max_num_seqs: int, seed: int = 0
    ) -> None:
        super().__init__(plan, max_num_seqs, seed)
        self.runner = runner
        self.vocab_size = vocab_size
        self._step = 0
        self._uncollected: set[int] = set()

    @property
    def is_idle(self) -> bool:
        """False after a case that ended in the middle of a step: its runner is of no further use."""
        return not self._uncollected

    # ---- steps

    def next_step_number(self) -> int:
        self._step += 1
        return self._step

    def forward(self, works: Sequence[Work], copies: Sequence[BlockCopy] = ()) -> Step:
        """Submit: allocates blocks, sorts by query length and calls `Runner.forward`."""
        ordered = sorted(works, key=lambda work: work.query_len)
        for work in ordered:
            self.grow(work.sequence, work.sequence.num_computed + work.query_len)
        number = self.next_step_number()
        batch, buffer = build_batch(
            number, ordered, self.runner.host_buffer, tuple(copies), len(self.free_blocks)
        )
        before = [(len(work.sequence.token_ids), work.sequence.num_computed) for work in ordered]
        for work in ordered:
            work.sequence.num_computed += work.query_len
        self._uncollected.add(number)
        self.runner.forward(batch)
        return Step(number, ordered, batch, buffer, before)

    def sample(self, step: Step, *, num_logprobs: int = 0, extra_ids: Int32 | None = None) -> None:
        """Queue the sampling of a submitted step. `extra_ids` [n] are wanted of every row."""
        rows = [row for work in step.works for row in work.sampling]
        step.sampling = build_sampling(rows, self.vocab_size, num_logprobs, extra_ids)
        for work in step.works:
            work.sequence.num_unseen = int(any(row.draws for row in work.sampling))
        self.runner.sample(step.number, step.sampling)

    def collect(self, step: Step, *, keep_arrays: bool = False) -> StepOutput:
        """Wait; append the drawn tokens to their sequences and destroy the step's arrays."""
        output = self.runner.collect(step.number)
        self._uncollected.discard(step.number)
        for index, work in enumerate(step.works):
            if any(row.draws for row in work.sampling):
                rows = step.rows_of(work.sequence)[: int(output.num_tokens[index])]
                work.sequence.token_ids.extend(int(output.token_ids[row]) for row in rows)
                work.sequence.num_unseen = 0
            if work.drafts:  # what was refused is not in KV
                work.sequence.num_computed = len(work.sequence.token_ids) - 1
        if not keep_arrays:
            self._destroy(step)
        return output

    def run(
        self,
        works: Sequence[Work],
        *,
        copies: Sequence[BlockCopy] = (),
        num_logprobs: int = 0,
        extra_ids: Int32 | None = None,
    ) -> tuple[Step, StepOutput]:
        """One whole step with nothing else in flight."""
        step = self.forward(works, copies)
        self.sample(step, num_logprobs=num_logprobs, extra_ids=extra_ids)
        return step, self.collect(step)

    def follow(self, step: Step, works: Sequence[Work], copies: Sequence[BlockCopy] = ()) -> Step:
        """Submit the step after `step`, whose sample is queued, as early as the runner's depth allows.

        At a depth of 2 its forward is queued before `step` is collected, as the engine core does.
        """
        if self.runner.max_in_flight == 1:
            self.collect(step)
            following = self.forward(works, copies)
        else:
            following = self.forward(works, copies)
            self.collect(step)
        self.sample(following)
        return following

    def rewind(self, step: Step) -> None:
        """Undo a step on the host, so that the same work can be tried again."""
        for work, (num_tokens, num_computed) in zip(step.works, step.before, strict=True):
            del work.sequence.token_ids[num_tokens:]
            work.sequence.num_computed = num_computed
            work.sequence.num_unseen = 0

    # ---- whole sequences

    def generate(
        self, sequences: Sequence[DrivenSequence], num_tokens: int, *, chunk: int | None = None
    ) -> list[list[int]]:
        """Greedy tokens of each sequence, all in one batch, at the runner's full depth.

        `chunk` is the token budget of a step.
        """
        starts = [len(sequence.token_ids) for sequence in sequences]
        in_flight: Step | None = None
        while True:
            works = self._next_works(sequences, [start + num_tokens for start in starts], chunk)
            step = self.forward(works) if works else None
            if in_flight:
                self.collect(in_flight)
            if step:
                self.sample(step)
            in_flight = step
            if in_flight and self.runner.max_in_flight == 1:
                self.collect(in_flight)
                in_flight = None
            if not works and not in_flight:
                return [seq.token_ids[start:] for seq, start in zip(sequences, starts, strict=True)]

    def prefill(self, sequence: DrivenSequence, chunk: int | None = None) -> None:
        """Compute KV of all tokens but the last, wanting no logits."""
        while sequence.num_left > 1:
            query_len = min(chunk or self.plan.max_num_batched_tokens, sequence.num_left - 1)
            self.run([Work(sequence, query_len)])

    def score(self, sequence: DrivenSequence, *, chunk: int | None = None) -> Scores:
        """Teacher-forced numbers of the tokens after the first (or after the shared prefix).

        The last token is not computed, so that the sequence may go on.
        """
        parts = []
        while sequence.num_left > 1:
            query_len = min(chunk or self.plan.max_num_batched_tokens, sequence.num_left - 1)
            work = scoring_work(sequence, query_len)
            _, output = self.run([work], num_logprobs=2)
            parts.append(scores_of(output, range(len(work.rows))))
        return Scores.join(parts)

    # ---- inside

    def _next_works(
        self, sequences: Sequence[DrivenSequence], stops: Sequence[int], chunk: int | None
    ) -> list[Work]:
        works: list[Work] = []
        budget = min(chunk or self.plan.max_num_batched_tokens, self.plan.max_num_batched_tokens)
        for sequence, stop in sorted(zip(sequences, stops, strict=True), key=lambda pair: pair[0].num_left):
            if len(sequence.token_ids) + sequence.num_unseen >= stop or budget == 0:
                continue
            query_len = min(budget, sequence.num_left)
            works.append(greedy_work(sequence, query_len))
            budget -= query_len
        return works

    def _destroy(self, step: Step) -> None:
        step.buffer.fill(0)
        for argument in (step.batch, step.sampling):
            for array in arrays_of(argument) if argument is not None else ():
                array.fill(0)


def greedy_work(sequence: DrivenSequence, query_len: int | None = None) -> Work:
    """A chunk (by default all that is left); its last token is a greedy row if it is the sequence's last."""
    length = sequence.num_left if query_len is None else query_len
    return drawing_work(sequence, GREEDY, length)


def drawing_work(sequence: DrivenSequence, row: RowSampling, query_len: int | None = None) -> Work:
    """The same with any sampling."""
    length = sequence.num_left if query_len is None else query_len
    is_last = length == sequence.num_left
    return Work(sequence, length, (length - 1,) if is_last else (), (row,) if is_last else ())


def scoring_work(sequence: DrivenSequence, query_len: int) -> Work:
    """A chunk that scores each token's successor, where the sequence knows it."""
    start = sequence.num_computed
    targets = sequence.token_ids[start + 1 : start + 1 + query_len]
    rows = tuple(RowSampling(draws=False, target=target) for target in targets)
    return Work(sequence, query_len, tuple(range(len(rows))), rows)


def scores_of(output: StepOutput, rows: Iterable[int]) -> Scores:
    """Of scoring rows whose step asked for at least two top tokens."""
    index = np.array(list(rows), np.int64)
    assert output.top_ids is not None, "the step asked for top tokens and got none"
    assert output.top_logprobs is not None
    top = output.top_logprobs[index]
    return Scores(output.logprobs[index].copy(), output.top_ids[index, 0].copy(), top[:, 0] - top[:, 1])
