"""Names of KV blocks by what they hold: a chained hash of adapter, salt and the tokens up to a block's end.

Equal keys mean equal tokens from position 0 on, so equal KV. BLAKE2b with 128 bits: users of a shared
engine must not be able to make a collision and read each other's context; 0.9 us a block of 16 tokens.
"""

from __future__ import annotations

from hashlib import blake2b

import numpy as np

from trivet.engine.sequence import Sequence

KEY_BYTES = 16


def extend_block_keys(sequence: Sequence, block_size: int) -> None:
    """Bring `sequence.block_keys` up to its full blocks of known tokens."""
    keys, token_ids = sequence.block_keys, sequence.token_ids
    first, stop = len(keys) * block_size, len(token_ids) // block_size * block_size
    if first == stop:
        return
    content = memoryview(np.array(token_ids[first:stop], np.int32).tobytes())
    size = block_size * 4
    key = keys[-1] if keys else _root(sequence)
    for start in range(0, len(content), size):
        key = blake2b(content[start : start + size], key=key, digest_size=KEY_BYTES).digest()
        keys.append(key)


def _root(sequence: Sequence) -> bytes:
    """Where the chain starts. The adapter is hashed first, so that no salt can stand for one."""
    adapter = blake2b(sequence.adapter.encode(), digest_size=KEY_BYTES).digest()
    return blake2b(sequence.cache_salt.encode(), key=adapter, digest_size=KEY_BYTES).digest()
