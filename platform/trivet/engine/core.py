"""The engine's loop: schedule, submit, commit the step before, let this one sample.

With a runner that keeps two steps in flight the host prepares and commits while the device computes; with
one that does not, the same code runs without the lag.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from collections.abc import Sequence as TokenIds
from dataclasses import dataclass
from operator import attrgetter

from trivet.contract import Batch, Feature, MemoryPlan, Runner
from trivet.counted import counted
from trivet.engine.batch import BatchBuilder
from trivet.engine.block_pool import BlockPool
from trivet.engine.commit import Committer, Update
from trivet.engine.deadlines import Deadlines
from trivet.engine.sampling_columns import SamplingColumns
from trivet.engine.scheduler import Scheduled, Scheduler
from trivet.engine.sequence import Sequence, SequenceState
from trivet.engine.swap_space import SwapCosts, SwapSpace, measure_copy_s
from trivet.errors import (
    ContextLengthExceeded,
    DeadlinePassed,
    OutOfMemory,
    Overloaded,
    RequestError,
    TrivetError,
    Unavailable,
    UnsupportedParameter,
)
from trivet.messages import EngineLoad

logger = logging.getLogger(__name__)

SMALL_STEP = 16  # tokens; a step of no more is not made smaller when it runs out of memory
CALM_STEPS = 64  # steps without trouble after which a shrunken token budget doubles


@dataclass(frozen=True, slots=True)
class CoreConfig:
    """What the core has to know beside the memory plan."""

    eos_token_ids: tuple[int, ...]
    vocab_size: int  # rows of the embedding: a prompt's ids are below
    num_tokens: int  # ids the tokenizer can make, the contract's V: drawn ids are below
    max_num_seqs: int = 64
    enable_prefix_caching: bool = True
    max_num_waiting: int = 1024  # a longer queue answers 429, but for a key that has less than its share
    seed: int = 0  # of the seeds that requests get which bring none
    adapters: tuple[str, ...] = ()  # names, by slot from 1 on


@dataclass(frozen=True, slots=True, eq=False)
class _InFlight:
    """A step that has been submitted and not collected."""

    parts: list[Scheduled]
    batch: Batch


class EngineCore:
    """Sequences in, tokens out. One thread calls it; a fake clock makes it testable."""

    def __init__(
        self,
        runner: Runner,
        plan: MemoryPlan,
        config: CoreConfig,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._runner = runner
        self._plan = plan
        self._config = config
        self._clock = clock
        self._num_steps = 0
        self.adapter_slots = {name: slot for slot, name in enumerate(config.adapters, 1)}
        block_size = plan.kv.block_size
        # One sequence alone must be able to finish, so the KV cache bounds the context as well.
        self._kv_tokens = (min(plan.num_blocks) - 1) * block_size
        self.max_model_len = min(plan.max_model_len, self._kv_tokens)
        max_num_seqs = min(config.max_num_seqs, plan.max_num_batched_tokens)  # every decode in every step
        self.block_pool = BlockPool(min(plan.num_blocks), block_size, max_num_seqs, self.max_model_len)
        self.scheduler = Scheduler(
            self.block_pool,
            max_num_seqs=max_num_seqs,
            token_budget=plan.max_num_batched_tokens,
            enable_prefix_caching=config.enable_prefix_caching,
            clock=clock,
            swap=self._swap_space(),
        )
        self._builder = BatchBuilder(runner, plan, self.block_pool, self.adapter_slots)
        self._columns = SamplingColumns(max_num_seqs, config.num_tokens)
        self._committer = Committer(self.scheduler, clock)
        self._sequences: dict[str, Sequence] = {}
        self._deadlines = Deadlines()
        self._num_refused = 0
        self._num_deadlines_passed = 0
        self._random = random.Random(config.seed)
        self._num_arrivals = 0
        self._in_flight: _InFlight | None = None
        self._ended_early: list[Update] = []  # sequences that wanted no token
        self._calm_steps = 0
        self._is_broken_off = False

    def _swap_space(self) -> SwapSpace | None:
        """None where the plan has no host blocks. Two steps of copies measure what they cost."""
        plan = self._plan
        if not plan.num_host_blocks or Feature.HOST_KV not in self._runner.features:
            return None
        costs = SwapCosts(measure_copy_s(self._runner, plan, self._num_steps + 1))
        self._num_steps += 2
        logger.info(
            "swap_blocks=%d copy_us_per_block=%.1f", plan.num_host_blocks, 1e6 * costs.copy_s_per_block
        )
        return SwapSpace(plan.num_host_blocks, plan.kv.block_size, len(plan.num_blocks), costs)

    # ---- requests ----

    @property
    def adapters(self) -> tuple[str, ...]:
        """Names of those that are loaded."""
        return tuple(self.adapter_slots)

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence.

        Raises: ContextLengthExceeded with both numbers; RequestError; Overloaded. Nothing is kept then.
        """
        self._check(sequence)
        params = sequence.params
        room = self.max_model_len - sequence.num_prompt_tokens
        wanted = room if params.max_tokens is None else params.max_tokens
        if wanted == 0 and sequence.num_unscored:
            wanted = 1  # a step that scores draws as well; that token is dropped
        sequence.max_total_tokens = sequence.num_prompt_tokens + min(wanted, room)
        if sequence.pooling is not None:  # one more than it computes: its last token may stand alone
            sequence.max_total_tokens = sequence.num_prompt_tokens + 1
        eos = () if params.ignore_eos else self._config.eos_token_ids
        sequence.stop_ids = frozenset((*eos, *params.stop_token_ids))
        given = self._random.getrandbits(64) if params.seed is None else params.seed
        sequence.seed = given % 2**64
        if sequence.group and not self._config.enable_prefix_caching:
            sequence.cache_salt = sequence.group  # shared by nobody else, then
        sequence.arrival = self._num_arrivals
        sequence.arrival_s = self._clock()
        self._num_arrivals += 1
        self.scheduler.waiting.push(sequence)
        if wanted == 0 and sequence.pooling is None:
            self._ended_early.append(self._committer.end_empty(sequence))
        else:
            self._sequences[sequence.request_id] = sequence
            self._deadlines.add(sequence)

    def check_prompt(self, token_ids: TokenIds[int], *, is_embedded: bool = False) -> None:
        """Whether a prompt can ever run; one that is embedded needs no room for a further token.

        Raises: ContextLengthExceeded with both numbers; RequestError.
        """
        if not token_ids:
            raise RequestError("the prompt has no tokens; send at least one", param="prompt")
        if len(token_ids) + (not is_embedded) > self.max_model_len:
            raise self._too_long(len(token_ids), is_embedded=is_embedded)
        lowest, highest = min(token_ids), max(token_ids)
        if lowest < 0 or highest >= self._config.vocab_size:
            wrong = lowest if lowest < 0 else highest
            raise RequestError(
                f"token id {wrong} in the prompt is not in the vocabulary; "
                f"ids go from 0 to {self._config.vocab_size - 1}",
                param="prompt",
            )

    def check_adapter(self, name: str) -> None:
        """Raises: RequestError naming those that are loaded."""
        if name not in self.adapter_slots:
            has = f"there are {', '.join(self.adapters)}" if self.adapters else "this engine has none"
            raise RequestError(f"there is no adapter {name[:200]!r}: {has}", param="adapter")

    def _check(self, sequence: Sequence) -> None:
        self._check_queue(sequence.key)  # first: a crowd must be cheap to turn away
        self.check_prompt(sequence.prompt_token_ids, is_embedded=sequence.pooling is not None)
        if sequence.pooling is not None and Feature.POOLING not in self._runner.features:
            raise UnsupportedParameter("the backend of this model computes no embeddings; use another one")
        sequence.check_ids(self._config.num_tokens)
        if sequence.adapter:
            self.check_adapter(sequence.adapter)
        if sequence.request_id in self._sequences:
            raise RequestError(f"request id {sequence.request_id!r} is in use; choose another")

    def _check_queue(self, key: str) -> None:
        """A key that waits with less than its share of a full queue still gets in: the queue is not its own.

        Raises: Overloaded.
        """
        waiting, limit = self.scheduler.waiting, self._config.max_num_waiting
        if len(waiting) < limit or waiting.num_waiting(key) < limit // waiting.num_keys(key):
            return
        self._num_refused += 1
        raise Overloaded(
            f"the queue has {counted(len(waiting), 'request')} and max_num_waiting is {limit}; "
            "retry later, or add replicas",
            retry_after_s=waiting.pace.retry_after_s(len(waiting) / 2),  # half empty by then
        )

    def _too_long(self, count: int, *, is_embedded: bool) -> ContextLengthExceeded:
        if self.max_model_len < self._plan.max_model_len:
            limit = f"the KV cache holds {self._kv_tokens} tokens"
            remedy = "shorten the prompt, or give the instance more memory"
        else:
            limit = f"the context is {self.max_model_len} tokens"
            remedy = "shorten the prompt, or raise max_model_len"
        rest = "" if is_embedded else ", of which one must be left to generate"
        return ContextLengthExceeded(
            f"the prompt has {count} tokens and {limit}{rest}; {remedy}",
            param="prompt",
        )

    def count_failure(self, error: TrivetError) -> None:
        """Of a sequence that ended before it came here: a full queue and a deadline count all the same."""
        self._num_refused += isinstance(error, Overloaded)
        self._num_deadlines_passed += isinstance(error, DeadlinePassed)

    def abort(self, request_id: str) -> bool:
        """End a sequence; its blocks are free at once. False if there is none of this id."""
        sequence = self._sequences.pop(request_id, None)
        if sequence is None:
            return False
        self._committer.abort(sequence)
        return True

    def reset_prefix_cache(self) -> int:
        """Forget every prefix. Returns how many tokens were known."""
        return self.block_pool.reset_cache() * self.block_pool.block_size

    # ---- the loop ----

    @property
    def has_work(self) -> bool:
        return bool(self._sequences or self._in_flight or self._ended_early)

    def step(self) -> list[Update]:
        """One turn of the loop. Raises: DeviceLost; Unavailable where one was broken off."""
        if self._is_broken_off:
            raise Unavailable(
                "a second Ctrl-C broke off a step, and nobody knows what the device did of it; load the "
                "model anew (a single one waits for the end of the step, and keeps the model)"
            )
        updates, self._ended_early = self._ended_early, []
        updates += self._end_late_ones()
        parts = self.scheduler.schedule()
        submitted = self._build(parts) if parts else None
        try:
            if submitted:
                self._runner.forward(submitted.batch)
                self.scheduler.submitted(submitted.parts, submitted.batch.step)
            if self._in_flight:
                updates += self._collect(self._in_flight)
            if submitted:
                sampling = self._columns.build(submitted.parts, submitted.batch)
                self._runner.sample(submitted.batch.step, sampling)
            self._in_flight = submitted
            if submitted and self._runner.max_in_flight == 1:
                updates += self._collect(submitted)
        except OutOfMemory as error:
            updates += self._recover(submitted, error)
        except KeyboardInterrupt:
            self._is_broken_off = True  # the next step's arrays would lie over those that may be in use
            raise
        return updates

    def _end_late_ones(self) -> list[Update]:
        """Deadlines: what has begun ends with what it has; what has not is told when to come again."""
        now = self._clock()
        updates = []
        for sequence in self._deadlines.passed(now):
            self._num_deadlines_passed += 1
            del self._sequences[sequence.request_id]
            if sequence.first_scheduled_s is not None and sequence.pooling is None:
                updates.append(self._committer.end_at_deadline(sequence))
                continue
            waiting = self.scheduler.waiting
            error = DeadlinePassed(
                f"no token was ready after {now - sequence.arrival_s:.3f} s, as long as its timeout allows; "
                "send it again later, or with a longer timeout",
                retry_after_s=waiting.pace.retry_after_s(len(waiting)),
            )
            updates.append(self._committer.fail(sequence, error, is_suspect=False))
        return updates

    def _build(self, parts: list[Scheduled]) -> _InFlight:
        self._num_steps += 1
        now = self._clock()
        for part in parts:
            if part.sequence.first_scheduled_s is None:
                part.sequence.first_scheduled_s = now
        swap = self.scheduler.swap
        copies = swap.take_copies(self._num_steps) if swap else ()
        return _InFlight(parts, self._builder.build(self._num_steps, parts, copies))

    def _collect(self, step: _InFlight) -> list[Update]:
        """Wait for a step and commit it. Raises: OutOfMemory, DeviceLost."""
        output = self._runner.collect(step.batch.step)
        self._in_flight = None
        self.block_pool.confirm(step.batch.step)
        if self.scheduler.swap:
            self.scheduler.swap.costs.observe(step.batch, output.device_time_s)
        updates = self._committer.commit(step.parts, output)
        for update in updates:
            if update.finish_reason is not None:
                del self._sequences[update.sequence.request_id]
        self._restore_budget()
        return updates

    # ---- a step without memory ----

    def _recover(self, submitted: _InFlight | None, error: OutOfMemory) -> list[Update]:
        """Contract rule 9: the failed step and the one behind it never happened.

        Their sequences start over, in smaller steps. A step that was small already fails its youngest.
        """
        failed = self._in_flight or submitted
        assert failed is not None, "a step was collected"
        if self.scheduler.swap:
            self.scheduler.swap.withdraw(failed.batch.step)
        for step in filter(None, {self._in_flight, submitted}):
            self.scheduler.take_back(step.parts)
        self._in_flight = None
        self._calm_steps = 0
        num_tokens = len(failed.batch.token_ids)
        logger.error("step=%d num_tokens=%d out of memory: %s", failed.batch.step, num_tokens, error)
        if num_tokens > SMALL_STEP:
            self.scheduler.token_budget = num_tokens // 2
            return []
        living = [part.sequence for part in failed.parts if part.sequence.state is SequenceState.WAITING]
        if not living:
            return []
        youngest = max(living, key=attrgetter("order"))
        del self._sequences[youngest.request_id]
        return [self._committer.fail(youngest, error)]

    def _restore_budget(self) -> None:
        self._calm_steps += 1
        if self._calm_steps % CALM_STEPS == 0:
            doubled = 2 * self.scheduler.token_budget
            self.scheduler.token_budget = min(doubled, self._plan.max_num_batched_tokens)

    # ---- numbers ----

    def load(self) -> EngineLoad:
        """How busy the engine is now, and what it has done since it started."""
        scheduler, committer, swap = self.scheduler, self._committer, self.scheduler.swap
        running = sum(s.max_total_tokens - s.num_computed_tokens for s in scheduler.running)
        return EngineLoad(
            num_running=len(scheduler.running),
            num_waiting=len(scheduler.waiting),
            num_tokens_outstanding=scheduler.waiting.num_tokens + running,
            kv_usage=self.block_pool.usage,
            num_steps=self._num_steps,
            num_preemptions=scheduler.num_preemptions,
            prompt_tokens=committer.prompt_tokens,
            generation_tokens=committer.generation_tokens,
            prefix_queries=scheduler.prefix_queries,
            prefix_hits=scheduler.prefix_hits,
            num_finished=dict(committer.num_finished),
            num_swaps=swap.num_swaps if swap else 0,
            num_swapped=swap.num_sequences if swap else 0,
            swap_usage=swap.usage if swap else 0.0,
            num_refused=self._num_refused,
            num_deadlines_passed=self._num_deadlines_passed,
        )
