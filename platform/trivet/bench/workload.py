"""What is asked of a model in a run: conversations of one turn or more, drawn from a seed.

Lengths and arrivals depend on the seed and the run's number only. The tokens depend on a salt as well:
a server's prefix cache outlives a benchmark, and a prompt that it has seen would measure the cache.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from trivet.bench.prompts import Form, Prompt, PromptMaker


@dataclass(frozen=True, slots=True)
class Turn:
    """One request. `prompt` is what is new in it: earlier turns and their answers come before."""

    prompt: Prompt
    max_tokens: int


@dataclass(frozen=True, slots=True)
class Workload:
    """The conversations of a run, in the order in which they are due."""

    conversations: tuple[tuple[Turn, ...], ...]
    warm_up: tuple[Turn, ...] = ()  # answered before the run begins, and not measured

    @property
    def num_requests(self) -> int:
        return sum(len(turns) for turns in self.conversations)


@dataclass(frozen=True, slots=True)
class Lengths:
    """Token counts, drawn evenly from `low` to `high`, both included."""

    low: int
    high: int

    def draw(self, rng: np.random.Generator) -> int:
        return int(rng.integers(self.low, self.high + 1))

    def as_json(self) -> int | str:
        """As the command line has it."""
        return self.low if self.low == self.high else f"{self.low}:{self.high}"


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a drawn workload.

    `prefix_tokens` more than 0: the prompts share a prefix of that length and `prompt_tokens` follow it.
    `is_warm`: the prefix has been answered once before the run. `num_turns`: of each conversation; every
    turn after the first adds `prompt_tokens` to the history.
    """

    num_prompts: int
    prompt_tokens: Lengths
    output_tokens: Lengths
    prefix_tokens: int = 0
    is_warm: bool = False
    num_turns: int = 1

    @property
    def most_tokens(self) -> int:
        """Of the longest conversation that may be drawn, its last answer included."""
        return self.prefix_tokens + self.num_turns * (self.prompt_tokens.high + self.output_tokens.high)


@dataclass(frozen=True, slots=True)
class Seeds:
    """Where a run's randomness comes from."""

    seed: int
    salt: int

    def lengths(self, run: int) -> np.random.Generator:
        return np.random.default_rng([self.seed, run, 0])

    def arrivals(self, run: int) -> np.random.Generator:
        return np.random.default_rng([self.seed, run, 1])

    def tokens(self, run: int) -> np.random.Generator:
        return np.random.default_rng([self.seed, run, 2, self.salt])


# A workload for each run: the first warms up, and no two share a prompt.
WorkloadOfRun = Callable[[int], Workload]


def drawn(shape: Shape, form: Form, id_range: tuple[int, int], seeds: Seeds) -> WorkloadOfRun:
    """Random prompts of a shape. `id_range`: first token id and the one behind the last."""

    def of_run(run: int) -> Workload:
        maker = PromptMaker(seeds.tokens(run), form, *id_range)
        lengths = seeds.lengths(run)
        prefix = maker.draw(shape.prefix_tokens, role="system") if shape.prefix_tokens else None
        conversations = []
        for _ in range(shape.num_prompts):
            turns = [_turn(maker, lengths, shape) for _ in range(shape.num_turns)]
            if prefix is not None:
                turns[0] = Turn(prefix.then(turns[0].prompt), turns[0].max_tokens)
            conversations.append(tuple(turns))
        warm_up: tuple[Turn, ...] = ()
        if prefix is not None and shape.is_warm:
            # Behind the prefix other tokens than any measured prompt's: only the prefix is warm.
            warm_up = (Turn(prefix.then(maker.draw(1)), 1),)
        return Workload(tuple(conversations), warm_up)

    return of_run


def _turn(maker: PromptMaker, lengths: np.random.Generator, shape: Shape) -> Turn:
    return Turn(maker.draw(shape.prompt_tokens.draw(lengths)), shape.output_tokens.draw(lengths))
