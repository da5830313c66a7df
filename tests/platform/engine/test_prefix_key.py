"""Names of blocks by what they hold."""

from __future__ import annotations

from trivet.engine.prefix_key import extend_block_keys
from trivet.engine.sequence import Sequence
from trivet.sampling_params import SamplingParams


def keys_of(token_ids: list[int], salt: str = "", block_size: int = 4, adapter: str = "") -> list[bytes]:
    sequence = Sequence("r", token_ids, SamplingParams(), cache_salt=salt, adapter=adapter)
    extend_block_keys(sequence, block_size)
    return sequence.block_keys


def test_only_full_blocks_have_keys() -> None:
    assert len(keys_of([1, 2, 3])) == 0
    assert len(keys_of([1, 2, 3, 4])) == 1
    assert len(keys_of([1, 2, 3, 4, 5, 6, 7])) == 1


def test_a_key_names_all_tokens_up_to_the_blocks_end() -> None:
    one, other = keys_of([1, 2, 3, 4, 5, 6, 7, 8]), keys_of([9, 2, 3, 4, 5, 6, 7, 8])
    assert one[0] != other[0]
    assert one[1] != other[1], "equal tokens behind unequal ones"
    assert keys_of([1, 2, 3, 4, 5, 6, 7, 9])[0] == one[0]


def test_salts_have_keys_of_their_own() -> None:
    tokens = [1, 2, 3, 4, 5, 6, 7, 8]
    assert not set(keys_of(tokens, "a")) & set(keys_of(tokens, "b"))
    assert not set(keys_of(tokens, "a")) & set(keys_of(tokens))
    assert keys_of(tokens, "a") == keys_of(tokens, "a")


def test_adapters_have_keys_of_their_own_whatever_the_salt() -> None:
    tokens = [1, 2, 3, 4]
    keys = [
        keys_of(tokens, salt, adapter=adapter)[0]
        for salt, adapter in (("", ""), ("a", ""), ("", "a"), ("a", "a"), ("b", "a"), ("ab", ""), ("", "ab"))
    ]
    assert len(set(keys)) == len(keys)


def test_keys_grow_with_the_tokens_as_if_made_at_once() -> None:
    sequence = Sequence("r", [1, 2, 3], SamplingParams())
    for token in range(4, 14):
        extend_block_keys(sequence, 4)
        sequence.token_ids.append(token)
    extend_block_keys(sequence, 4)
    assert sequence.block_keys == keys_of(list(range(1, 14)))
