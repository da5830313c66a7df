"""Rule 1: block copies, forward and sample take effect in the order in which they were called."""

from __future__ import annotations

from trivet.contract_suite.driver import greedy_work
from trivet.contract_suite.expect import expect_greedy, expect_scores
from trivet.contract_suite.prompts import FIRST_PLAIN_TOKEN, random_prompt
from trivet.contract_suite.sampling_oracle import RowSampling
from trivet.contract_suite.steps import DrivenSequence, Work
from trivet.contract_suite.subject import Subject


def test_a_freed_block_may_be_given_away_while_its_last_step_is_under_way(subject: Subject) -> None:
    """The next owner stands behind in the queue, so it neither spoils that step nor is spoilt by it."""
    driver = subject.driver()
    prompts = [random_prompt(2 * driver.block_size + 3, seed) for seed in range(4)]
    sequence = driver.add(prompts[0])
    step = driver.forward([greedy_work(sequence)])
    driver.sample(step)
    for prompt in prompts[1:]:
        gone, freed = sequence, set(sequence.blocks[0])
        driver.drop(gone)
        sequence = driver.add(prompt)
        step = driver.follow(step, [greedy_work(sequence)])
        assert freed & set(sequence.blocks[0]), "the driver gave other blocks"
        expect_greedy(subject, gone.token_ids[:-1], gone.token_ids[-1:])
    driver.collect(step)
    driver.generate([sequence], 6)
    expect_greedy(subject, prompts[-1], sequence.token_ids[len(prompts[-1]) :])


def test_a_slot_may_be_given_away_while_its_last_step_is_under_way(subject: Subject) -> None:
    """The newest token of a slot is that of its present owner."""
    driver = subject.driver()
    sequence = driver.add(random_prompt(5, 0))
    step = driver.forward([greedy_work(sequence)])
    driver.sample(step)
    for seed in range(1, 6):
        step = driver.follow(step, [greedy_work(sequence)])  # reads the slot's newest token
        gone = sequence
        driver.drop(gone)
        sequence = driver.add(random_prompt(5, seed))
        assert sequence.slot == gone.slot
        step = driver.follow(step, [greedy_work(sequence)])
        assert len(gone.token_ids) == 7
        expect_greedy(subject, gone.token_ids[:5], gone.token_ids[5:])
    driver.collect(step)
    driver.generate([sequence], 4)
    expect_greedy(subject, sequence.token_ids[:5], sequence.token_ids[5:])


def test_the_newest_token_of_a_slot_is_read_on_the_device(subject: Subject) -> None:
    """ON_DEVICE stands for a token that the host has not seen: sequences of unlike ages, full depth."""
    driver = subject.driver()
    prompts = [random_prompt(length, length) for length in (1, 2, 9, driver.block_size, 30)]
    sequences = [driver.add(prompt) for prompt in prompts]
    generated = driver.generate(sequences, 12)
    for prompt, tokens in zip(prompts, generated, strict=True):
        expect_greedy(subject, prompt, tokens)


def test_a_slots_newest_token_is_the_last_that_counted_also_after_drafts(subject: Subject) -> None:
    """At any depth: the driver hides what it has seen and names it ON_DEVICE."""
    driver = subject.driver()
    plain, drafting, wrong = (driver.add(random_prompt(length, length)) for length in (6, 9, 12))
    (right,) = driver.generate([driver.add(random_prompt(9, 9))], 2)
    works = [
        greedy_work(plain),
        _drafting_work(drafting, right),
        _drafting_work(wrong, [FIRST_PLAIN_TOKEN, FIRST_PLAIN_TOKEN + 1]),
    ]
    step, output = driver.run(works)
    sequences = [plain, drafting, wrong]
    drawn = {id(work.sequence): int(n) for work, n in zip(step.works, output.num_tokens, strict=True)}
    assert drawn[id(drafting)] == 3
    hidden = [sequence.token_ids.pop() for sequence in sequences]
    for sequence in sequences:
        sequence.num_unseen = 1
    driver.run([greedy_work(sequence) for sequence in sequences])
    for sequence, token, length in zip(sequences, hidden, (6, 9, 12), strict=True):
        sequence.token_ids.insert(-1, token)
        expect_greedy(subject, sequence.token_ids[:length], sequence.token_ids[length:])


def _drafting_work(sequence: DrivenSequence, drafts: list[int]) -> Work:
    """A whole prompt with greedy drafts behind it."""
    length = len(sequence.token_ids)
    rows = tuple(range(length - 1, length + len(drafts)))
    sampling = (*(RowSampling(target=token) for token in drafts), RowSampling())
    return Work(sequence, length + len(drafts), rows, sampling, tuple(drafts))


def test_block_copies_come_before_the_forward_of_their_batch(subject: Subject) -> None:
    """Copy-on-write whose source block gets a new owner in the very same batch."""
    driver = subject.driver()
    size = driver.block_size
    shared = random_prompt(size + size // 2, 1)
    parent = driver.add([*shared, 50])
    driver.prefill(parent)
    child = driver.add([*shared, *random_prompt(size, 2)])
    copies = driver.copy_blocks(parent, child)
    sources = parent.blocks[0]
    driver.drop(parent)
    thief = driver.add(random_prompt(2 * size, 3))
    driver.run([greedy_work(child), greedy_work(thief)], copies=copies)
    assert set(thief.blocks[0]) & set(sources), "the driver gave other blocks"
    driver.generate([child, thief], 5)
    expect_greedy(subject, child.token_ids[: len(shared) + size], child.token_ids[len(shared) + size :])
    expect_greedy(subject, thief.token_ids[: 2 * size], thief.token_ids[2 * size :])


def test_a_batch_of_copies_alone_is_carried_out(subject: Subject) -> None:
    """S may be 0, and copies still count."""
    driver = subject.driver()
    prompt = random_prompt(2 * driver.block_size + 2, 4)
    parent = driver.add(prompt)
    driver.prefill(parent)
    child = driver.add(prompt)
    copies = driver.copy_blocks(parent, child)
    _, output = driver.run([], copies=copies)
    assert len(output.num_tokens) == 0
    driver.drop(parent)
    driver.generate([driver.add(random_prompt(2 * driver.block_size, 5))], 1)
    driver.generate([child], 5)
    expect_greedy(subject, prompt, child.token_ids[len(prompt) :])


def test_an_empty_batch_gives_an_empty_result(subject: Subject) -> None:
    """S = 0, R = 0: nothing is drawn, and the sequences around it go on."""
    driver = subject.driver()
    prompt = random_prompt(7, 6)
    sequence = driver.add(prompt)
    driver.generate([sequence], 2)
    step, output = driver.run([])
    assert output.step == step.number
    for array in (output.token_ids, output.num_tokens, output.is_finite, output.logprobs, output.ranks):
        assert len(array) == 0
    driver.generate([sequence], 3)
    expect_greedy(subject, prompt, sequence.token_ids[len(prompt) :])


def test_a_dropped_sequence_leaves_its_batch_mates_alone(subject: Subject) -> None:
    """Abort between steps, with a step under way that still computes the aborted one."""
    driver = subject.driver()
    prompts = [random_prompt(11 + seed, seed) for seed in range(4)]
    sequences = [driver.add(prompt) for prompt in prompts]
    driver.generate(sequences, 2)
    step = driver.forward([greedy_work(sequence) for sequence in sequences])
    driver.sample(step)
    driver.drop(sequences[1])
    others = [sequences[0], *sequences[2:]]
    newcomer = driver.add(random_prompt(20, 9))
    step = driver.follow(step, [greedy_work(sequence) for sequence in (*others, newcomer)])
    driver.collect(step)
    driver.generate([*others, newcomer], 4)
    for sequence in others:
        prompt = prompts[sequences.index(sequence)]
        expect_greedy(subject, prompt, sequence.token_ids[len(prompt) :])
    expect_greedy(subject, newcomer.token_ids[:20], newcomer.token_ids[20:])


def test_a_preempted_sequence_recomputes_to_the_same_tokens(subject: Subject) -> None:
    """Preemption by recompute: other blocks, another slot, prompt and completion in one prefill."""
    driver = subject.driver()
    prompts = [random_prompt(driver.block_size + 5 + seed, seed) for seed in range(3)]
    sequences = [driver.add(prompt) for prompt in prompts]
    for victim in (2, 0, 1, 2):
        driver.generate(sequences, 3)
        driver.preempt(sequences[victim])
    driver.generate(sequences, 3)
    for prompt, sequence in zip(prompts, sequences, strict=True):
        expect_greedy(subject, prompt, sequence.token_ids[len(prompt) :])


def test_scores_of_a_preempted_sequence_are_the_same(subject: Subject) -> None:
    """Recompute after others used its blocks."""
    driver = subject.driver()
    prompt = random_prompt(2 * driver.block_size + 1, 3)
    sequence = driver.add(prompt)
    driver.prefill(sequence, driver.block_size // 2 + 1)
    driver.preempt(sequence)
    driver.generate([driver.add(random_prompt(3 * driver.block_size, 8))], 1)
    expect_scores(subject, prompt, driver.score(sequence))
