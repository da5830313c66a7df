"""What differs between two events of a stream is a text, whatever that text is."""

from __future__ import annotations

import msgspec
import pytest

from trivet_web.answers.chunk_template import ChunkTemplate
from trivet_web.api.openai_objects import ChatChunk, ChatChunkChoice, ChatDelta


def encoded(text: str) -> bytes:
    """Of a client that chose its own names, with quotes."""
    delta = ChatDelta(content=text, reasoning=text)
    return msgspec.json.encode(ChatChunk('"id\\', 1, 'mo"del', [ChatChunkChoice(0, delta)]))


@pytest.mark.parametrize("text", ["a", '"', '\\"', "\n\x00\x1f", "世界🌍", "\u2028", "", "\ufffd"])
def test_a_text_is_put_where_the_whole_event_has_it(text: str) -> None:
    template = ChunkTemplate(encoded)
    assert template.of(text) == encoded(text)
    assert template.of("once more") == encoded("once more")
