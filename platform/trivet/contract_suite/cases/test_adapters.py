"""Feature.LORA: each row gets its own adapter's model, whatever else is in the batch, and nobody else's."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from trivet.contract import Feature
from trivet.contract_suite.driver import Driver, greedy_work
from trivet.contract_suite.engine_runs import greedy_request, run_core
from trivet.contract_suite.expect import expect_greedy, expect_scores
from trivet.contract_suite.prompts import random_prompt
from trivet.contract_suite.steps import DrivenSequence
from trivet.contract_suite.subject import Subject
from trivet.contract_suite.tiny_adapters import ADAPTERS, SLOTS
from trivet.engine.sequence import Sequence
from trivet.errors import Unsupported, WeightsError
from trivet.weights.index import WeightIndex

NAMES = ("one", "two", "three")  # of the slots in the engine


def _driver(subject: Subject, model: str = "llama") -> Driver:
    """With every adapter in the slot of its index. Skips where there is nothing to test."""
    if not subject.accepts(subject.config(adapters=SLOTS), model):
        pytest.skip(f"backend {subject.backend.name} takes no adapters with {subject.options or 'this'}")
    driver = subject.driver(model, adapters=SLOTS)
    if Feature.LORA not in driver.runner.features:
        pytest.skip(f"backend {subject.backend.name} does not declare Feature.LORA")
    for slot in ADAPTERS:
        driver.runner.load_adapter(slot, subject.models.adapter(model, slot).weights)
    return driver


def _expect(subject: Subject, sequence: DrivenSequence, length: int, model: str = "llama") -> None:
    """What follows the prompt is of the sequence's own model."""
    prompt, generated = sequence.token_ids[:length], sequence.token_ids[length:]
    expect_greedy(subject, prompt, generated, f"{model}+{sequence.adapter}" if sequence.adapter else model)


@pytest.mark.parametrize("slot", ADAPTERS)
def test_scores_are_those_of_the_model_with_the_adapter_merged(subject: Subject, slot: int) -> None:
    """In one chunk and in many."""
    driver = _driver(subject)
    tokens = random_prompt(3 * driver.block_size + 5, slot)
    for chunk in (None, 7):
        sequence = driver.add(tokens, slot)
        expect_scores(subject, tokens, driver.score(sequence, chunk=chunk), f"llama+{slot}")
        driver.drop(sequence)


def test_a_batch_of_all_adapters_and_none_gives_each_row_its_own(subject: Subject) -> None:
    """Prompts of all lengths in one step, then decodes; and again in chunks beside decodes."""
    driver = _driver(subject)
    for chunk in (None, 24):
        prompts = [random_prompt(3 + 11 * i, i) for i in range(8)]
        sequences = [driver.add(prompt, i % 4) for i, prompt in enumerate(prompts)]
        driver.generate(sequences, 6, chunk=chunk)
        for sequence, prompt in zip(sequences, prompts, strict=True):
            _expect(subject, sequence, len(prompt))
            driver.drop(sequence)


def test_biases_and_norms_of_heads_stand_beside_an_adapter(subject: Subject) -> None:
    """Qwen 2 has biases where Qwen 3 has norms; a tied head."""
    for model in ("qwen2-tied", "qwen3"):
        driver = _driver(subject, model)
        prompt = random_prompt(20, 3)
        sequences = [driver.add(prompt, slot) for slot in (0, 1)]
        driver.generate(sequences, 5)
        for sequence in sequences:
            _expect(subject, sequence, len(prompt), model)
            driver.drop(sequence)


def test_rows_of_the_base_model_are_what_they_are_without_adapters(subject: Subject) -> None:
    """To the last bit, beside the same rows: an adapter adds nothing to another row."""
    driver = _driver(subject)
    tokens = [random_prompt(length, length) for length in (1, 1, 9, 40)]
    outputs = []
    for adapters in ((0, 0, 0, 0), (0, 1, 0, 2)):
        sequences = [driver.add(prompt, adapter) for prompt, adapter in zip(tokens, adapters, strict=True)]
        outputs.append(driver.run([greedy_work(s) for s in sequences], num_logprobs=3))
        for sequence in sequences:
            driver.drop(sequence)
    (_, without), (_, beside) = outputs
    assert without.top_logprobs is not None
    assert beside.top_logprobs is not None
    for row in (0, 2):
        np.testing.assert_array_equal(without.top_logprobs[row], beside.top_logprobs[row])
    assert not np.array_equal(without.top_logprobs[3], beside.top_logprobs[3])


def test_a_slot_can_be_emptied_and_filled_anew_while_others_are_in_use(subject: Subject) -> None:
    """Empty, its rows are the base model's."""
    driver = _driver(subject)
    prompt = random_prompt(12, 5)
    keeper = driver.add(random_prompt(9, 6), 2)
    driver.generate([keeper], 2)
    driver.runner.unload_adapter(1)
    driver.runner.unload_adapter(1)
    emptied = driver.add(prompt, 1)
    driver.generate([emptied, keeper], 4)
    expect_greedy(subject, prompt, emptied.token_ids[len(prompt) :])
    driver.drop(emptied)
    driver.runner.load_adapter(1, subject.models.adapter("llama", 3).weights)
    anew = driver.add(prompt, 1)
    driver.generate([anew, keeper], 4)
    expect_greedy(subject, prompt, anew.token_ids[len(prompt) :], "llama+3")
    _expect(subject, keeper, 9)
    for sequence in (anew, keeper):
        driver.drop(sequence)


def test_what_does_not_fit_a_slot_is_refused_and_leaves_it_empty(subject: Subject) -> None:
    """A slot that is not there, values that are not finite."""
    driver = _driver(subject)
    adapter = subject.models.adapter("llama", 1).weights
    for slot in (0, SLOTS.num_slots + 1):
        with pytest.raises(Unsupported):
            driver.runner.load_adapter(slot, adapter)
    infinite = [
        replace(tensor, scale=float("inf")) if tensor.name.endswith("lora_b") else tensor
        for tensor in adapter.tensors
    ]
    with pytest.raises(WeightsError, match="not finite"):
        driver.runner.load_adapter(1, WeightIndex(tuple(infinite)))
    prompt = random_prompt(10, 1)
    sequence = driver.add(prompt, 1)
    driver.generate([sequence], 3)
    expect_greedy(subject, prompt, sequence.token_ids[len(prompt) :])
    driver.drop(sequence)


def test_slots_are_planned_for_and_held_as_planned(subject: Subject) -> None:
    """By a part of their own, of which there is none without slots."""
    driver = _driver(subject)
    planned = {part.name: part.size_bytes for part in driver.plan.parts}
    held = {part.name: part.size_bytes for part in driver.runner.memory()}
    assert planned["adapters"] == held["adapters"] > 0
    more = subject.plan(subject.config(adapters=replace(SLOTS, num_slots=6)))
    assert {part.name: part.size_bytes for part in more.parts}["adapters"] == 2 * planned["adapters"]
    assert "adapters" not in {part.name for part in subject.plan(subject.config()).parts}


def test_the_engine_never_shares_a_prefix_between_adapters(subject: Subject) -> None:
    """The same prompt under every adapter and none, twice, with salts; each hits its own blocks alone."""
    _driver(subject)
    size = subject.block_size
    prompt = random_prompt(2 * size + 3, 9)
    with subject.core(adapters=SLOTS, core={"adapters": NAMES}) as core:
        for slot in ADAPTERS:
            core._runner.load_adapter(slot, subject.models.adapter("llama", slot).weights)
        for wave in range(2):
            for salt in ("", "a"):
                for slot, name in enumerate(("", *NAMES)):
                    before = core.load().prefix_hits
                    outcome = run_core(core, [_request(f"{wave}{salt}{slot}", prompt, name, salt)])
                    (tokens,) = (one.token_ids for one in outcome.values())
                    expect_greedy(subject, prompt, tokens, f"llama+{slot}" if slot else "llama")
                    assert core.load().prefix_hits - before == (2 * size if wave else 0)


def test_a_preempted_sequence_keeps_its_adapter(subject: Subject) -> None:
    """Eight requests where two have room, of all adapters and none."""
    _driver(subject)
    size = subject.block_size
    prompts = [random_prompt(size - 3 + i % 3, i) for i in range(8)]
    with subject.core(core={"adapters": NAMES}, num_blocks=5, max_model_len=4 * size, adapters=SLOTS) as core:
        for slot in ADAPTERS:
            core._runner.load_adapter(slot, subject.models.adapter("llama", slot).weights)
        names = ("", *NAMES) * 2
        requests = [
            _request(str(i), prompt, name, length=size + 4)
            for i, (prompt, name) in enumerate(zip(prompts, names, strict=True))
        ]
        outcomes = run_core(core, requests)
        assert core.load().num_preemptions > 0, "the pool was not tiny enough"
    for i, prompt in enumerate(prompts):
        model = f"llama+{i % 4}" if i % 4 else "llama"
        assert len(outcomes[str(i)].token_ids) == size + 4
        expect_greedy(subject, prompt, outcomes[str(i)].token_ids, model)


def _request(request_id: str, prompt: list[int], adapter: str, salt: str = "", length: int = 5) -> Sequence:
    request = greedy_request(request_id, prompt, length)
    request.adapter, request.cache_salt = adapter, salt
    return request
