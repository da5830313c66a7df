"""Batch composition: what else is in a batch changes no sequence's tokens."""

from __future__ import annotations

import numpy as np
import pytest

from trivet.contract_suite.driver import Driver, greedy_work
from trivet.contract_suite.expect import expect_greedy
from trivet.contract_suite.prompts import random_prompt
from trivet.contract_suite.steps import DrivenSequence, Work
from trivet.contract_suite.subject import Subject


def test_a_sequence_gets_the_same_tokens_alone_and_in_company(subject: Subject) -> None:
    """Alone, then among sequences of all lengths."""
    driver = subject.driver()
    prompt = random_prompt(driver.block_size + 3, 1)
    for num_mates in (0, 1, 10):
        sequence = driver.add(prompt)
        mates = [driver.add(random_prompt(1 + 5 * i, 50 + i)) for i in range(num_mates)]
        driver.generate([sequence, *mates], 8)
        expect_greedy(subject, prompt, sequence.token_ids[len(prompt) :])
        for mate in mates:
            expect_greedy(subject, mate.token_ids[:-8], mate.token_ids[-8:])
        for member in (sequence, *mates):
            driver.drop(member)


def test_sequences_may_join_at_every_step(subject: Subject) -> None:
    """A prefill beside decodes, again and again, in chunks of the step's budget."""
    driver = subject.driver()
    running: list[tuple[int, DrivenSequence]] = []
    for joined in range(8):
        length = 3 + 7 * joined
        running.append((length, driver.add(random_prompt(length, joined))))
        driver.generate([sequence for _, sequence in running], 2, chunk=24)
    for length, sequence in running:
        expect_greedy(subject, sequence.token_ids[:length], sequence.token_ids[length:])


@pytest.mark.parametrize("seed", range(4))
def test_any_schedule_gives_the_oracles_tokens(subject: Subject, seed: int) -> None:
    """A random walk over joins, chunks, decodes, forks, preemptions and aborts."""
    driver = subject.driver()
    walk = _Walk(driver, np.random.default_rng(seed))
    for _ in range(40):
        walk.take_step()
    walk.finish()
    assert len(walk.ended) >= 5
    for length, sequence in walk.ended:
        expect_greedy(subject, sequence.token_ids[:length], sequence.token_ids[length:])


class _Walk:
    """A scheduler that decides by chance, within the rules."""

    def __init__(self, driver: Driver, generator: np.random.Generator) -> None:
        self.driver = driver
        self.random = generator
        self.running: list[tuple[int, DrivenSequence]] = []
        self.ended: list[tuple[int, DrivenSequence]] = []

    def take_step(self) -> None:
        chance = self.random.random()
        if len(self.running) < 6 and chance < 0.4:
            self._join()
        elif len(self.running) > 2 and chance < 0.5:
            self._end(int(self.random.integers(len(self.running))))
        elif self.running and chance < 0.6:
            self.driver.preempt(self.running[int(self.random.integers(len(self.running)))][1])
        works = [self._work(sequence) for _, sequence in self.running if self.random.random() < 0.8]
        if works:
            self.driver.run(works)

    def finish(self) -> None:
        while self.running:
            _, sequence = self.running[0]
            self.driver.run([greedy_work(sequence)])
            self._end(0)

    def _work(self, sequence: DrivenSequence) -> Work:
        budget = self.driver.plan.max_num_batched_tokens // 8
        length = min(sequence.num_left, budget, 1 + int(self.random.integers(2 * self.driver.block_size)))
        return greedy_work(sequence, length)

    def _join(self) -> None:
        size = self.driver.block_size
        seed = int(self.random.integers(1_000_000))
        parents = [seq for _, seq in self.running if seq.num_computed >= size and not self._is_shared(seq)]
        if parents and self.random.random() < 0.5:
            # The child takes the parent's place, so that no block has two owners when one ends.
            parent = parents[0]
            prompt = [*parent.token_ids[:size], *random_prompt(int(self.random.integers(1, 20)), seed)]
            child = self.driver.fork(parent, prompt, num_shared=1)
            for group, blocks in enumerate(parent.blocks):
                parent.blocks[group] = blocks[1:]
            self._forget(parent)
            self.running.append((len(prompt), child))
            return
        prompt = random_prompt(int(self.random.integers(1, 3 * size)), seed)
        self.running.append((len(prompt), self.driver.add(prompt)))

    def _is_shared(self, sequence: DrivenSequence) -> bool:
        return not sequence.blocks[0]

    def _end(self, index: int) -> None:
        self.ended.append(self.running.pop(index))
        self.driver.drop(self.ended[-1][1])

    def _forget(self, sequence: DrivenSequence) -> None:
        index = [member for _, member in self.running].index(sequence)
        self._end(index)
