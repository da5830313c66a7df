"""One answer in Anthropic's form: what is told of it while it runs, and the whole of it."""

from __future__ import annotations

import msgspec

from trivet_web.api.chat import ChatAnswer
from trivet_web.api.whole_answer import Completed
from trivet_web.dialects.anthropic.objects import (
    AnswerBlock,
    MessageObject,
    MessageUsage,
    TextBlock,
    ThinkingBlock,
    ToolUseBlock,
)
from trivet_web.request_name import request_id

_REASONS = {"length": "max_tokens", "stop": "end_turn"}


class MessageAnswer:
    """Of one request; made while it is at hand."""

    def __init__(self, answer: ChatAnswer, model: str) -> None:
        self.request_id = request_id()
        self._answer = answer
        self._model = model

    def begun(self, first: Completed) -> MessageObject:
        """Before any content."""
        usage = msgspec.structs.replace(self.usage(first), output_tokens=0)
        return MessageObject(self._answer.exchange.public_id, self._model, [], None, None, usage)

    def whole(self, done: Completed) -> MessageObject:
        message = self._answer.readers[0].message(done)
        blocks: list[AnswerBlock] = []
        if isinstance(message.reasoning, str):
            blocks.append(ThinkingBlock(message.reasoning))
        if message.content:
            blocks.append(TextBlock(message.content))
        if isinstance(message.tool_calls, list):
            blocks += [
                ToolUseBlock(
                    call.id, call.function.name, msgspec.json.decode(call.function.arguments or "{}")
                )
                for call in message.tool_calls
            ]
        has_calls = isinstance(message.tool_calls, list)
        reason, sequence = self.stop(done, has_calls=has_calls)
        return MessageObject(
            self._answer.exchange.public_id, self._model, blocks, reason, sequence, self.usage(done)
        )

    def stop(self, done: Completed, *, has_calls: bool) -> tuple[str, str | None]:
        """The reason, and the stop sequence where that was it."""
        if done.finish_reason == "stop" and isinstance(done.stop_reason, str):
            return "stop_sequence", done.stop_reason
        if done.finish_reason == "stop" and has_calls:
            return "tool_use", None
        return _REASONS.get(done.finish_reason, "end_turn"), None

    def usage(self, done: Completed) -> MessageUsage:
        computed = done.prompt_tokens - done.cached_tokens
        return MessageUsage(computed, done.completion_tokens, done.cached_tokens)
