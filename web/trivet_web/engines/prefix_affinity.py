"""Which instances have read the beginning of a prompt before, so that their prefix cache is met again.

Prompts are cut into spans of `SPAN_TOKENS`, whatever the block size of a backend is: replicas of one name
may run on several kinds of hardware. A span's digest covers all before it, so equal digests mean equal
beginnings. What an engine has evicted since is not known here: a wrong guess costs a prefill, no result.
"""

from __future__ import annotations

import hashlib
import threading
from array import array
from collections import OrderedDict
from collections.abc import Collection, Sequence

SPAN_TOKENS = 256
MAX_SPANS = 1 << 16  # remembered: 16 M tokens, about 20 MB
MAX_PROMPT_SPANS = 1024  # of one prompt, looked at


class PrefixAffinity:
    """Thread-safe. Remembers, least recently used first, who has read which span."""

    def __init__(self, max_spans: int = MAX_SPANS) -> None:
        self._max_spans = max_spans
        self._lock = threading.Lock()
        self._readers: OrderedDict[bytes, set[str]] = OrderedDict()

    def matches(self, digests: Sequence[bytes], candidates: Collection[str]) -> dict[str, int]:
        """Tokens at the beginning of the prompt that each of the candidates has read; none is left out."""
        matched = dict.fromkeys(candidates, 0)
        with self._lock:
            reading = set(candidates)
            for digest in digests:
                reading &= self._readers.get(digest, set())
                if not reading:
                    break
                for instance in reading:
                    matched[instance] += SPAN_TOKENS
        return matched

    def remember(self, digests: Sequence[bytes], instance_id: str) -> None:
        """The instance reads these spans now."""
        with self._lock:
            for digest in reversed(digests):  # a beginning is forgotten last: without it the rest is vain
                self._readers.setdefault(digest, set()).add(instance_id)
                self._readers.move_to_end(digest)
            while len(self._readers) > self._max_spans:
                self._readers.popitem(last=False)


def span_digests(prompt: Sequence[int], salt: str) -> list[bytes]:
    """One for each whole span; `salt` keeps names and salts apart. 32k tokens take 1.2 ms (Zen 4, busy)."""
    num_tokens = min(len(prompt) // SPAN_TOKENS, MAX_PROMPT_SPANS) * SPAN_TOKENS
    numbers = memoryview(array("q", prompt[:num_tokens]))
    running = hashlib.blake2b(salt.encode(), digest_size=16)
    digests = []
    for start in range(0, num_tokens, SPAN_TOKENS):
        running.update(numbers[start : start + SPAN_TOKENS])
        digests.append(running.digest())
    return digests
