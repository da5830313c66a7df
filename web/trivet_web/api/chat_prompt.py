"""The fields that decide what a chat's prompt is, and the prompt that they make."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trivet.errors import ModelFilesError, RequestError, UnsupportedParameter
from trivet.text.chat_template import ChatTemplate
from trivet.text.template_limits import MAX_STEPS
from trivet_web.api.conversation import Message
from trivet_web.api.inference import Target
from trivet_web.api.tools import ToolFields
from trivet_web.api.truncation import TruncatedPrompt, truncated
from trivet_web.web_process import web_process

MAX_TEMPLATE_CHARACTERS = 64 << 10
MAX_TEMPLATE_STEPS = MAX_STEPS // 4  # of one that comes with a request: nobody has tried it before


@dataclass(frozen=True, slots=True)
class Prompt:
    """As text, and as the tokens of it that are used."""

    text: str
    token_ids: list[int]
    num_truncated: int = 0


class ChatPromptFields(ToolFields, kw_only=True):
    """OpenAI's `messages`, and vLLM's fields around them. (One line of descent: structs have one base.)"""

    messages: list[Message]
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    documents: list[dict[str, Any]] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    add_special_tokens: bool | None = None
    reasoning_effort: str | None = None

    def check_prompt(self) -> None:
        """Raises: RequestError."""
        if self.continue_final_message and self.add_generation_prompt:
            raise RequestError(
                "continue_final_message and add_generation_prompt are both true; a message that goes on has "
                "no header: leave add_generation_prompt out",
                param="add_generation_prompt",
            )

    def render(
        self, target: Target, messages: Sequence[Mapping[str, Any]], tools: list[dict[str, Any]] | None
    ) -> str:
        """Raises: RequestError in the template's own words; UnsupportedParameter for one of the request."""
        return self._template(target).render(
            messages,
            tools=tools,
            add_generation_prompt=self.add_generation_prompt is not False,
            documents=self.documents,
            continue_final_message=bool(self.continue_final_message),
            variables={**self._effort(), **(self.chat_template_kwargs or {})},
        )

    def encode(self, target: Target, text: str, truncation: TruncatedPrompt | None) -> Prompt:
        """Raises: ContextLengthExceeded where the text is too long to look at."""
        (ids,) = web_process().prompts.encode(
            target.model,
            [text],
            target.max_model_len,
            "messages",
            # The template writes the begin token where the model wants one.
            add_special_tokens=bool(self.add_special_tokens),
        )
        kept = truncated(ids, truncation, target.max_model_len)
        return Prompt(text, kept, len(ids) - len(kept))

    def _effort(self) -> dict[str, Any]:
        """`none` is no thinking, by the two names that templates have for it."""
        if self.reasoning_effort is None:
            return {}
        switches = {"enable_thinking": False, "thinking": False} if self.reasoning_effort == "none" else {}
        return {"reasoning_effort": self.reasoning_effort, **switches}

    def _template(self, target: Target) -> ChatTemplate:
        if self.chat_template is None:
            return target.model.require_template(target.deployed.name)
        if not target.trusts_request_template:
            raise UnsupportedParameter(
                f"chat_template is sent with the request, and model {target.deployed.name!r} takes none; "
                "leave it out, or launch the model with trust_request_chat_template=true",
                param="chat_template",
            )
        if len(self.chat_template) > MAX_TEMPLATE_CHARACTERS:
            raise RequestError(
                f"chat_template has {len(self.chat_template)} characters; at most {MAX_TEMPLATE_CHARACTERS} "
                "are taken",
                param="chat_template",
            )
        tokenizer = target.model.tokenizer
        try:
            return ChatTemplate(
                self.chat_template, tokenizer.bos_token, tokenizer.eos_token, max_steps=MAX_TEMPLATE_STEPS
            )
        except ModelFilesError as error:
            raise RequestError(f"chat_template of the request: {error}", param="chat_template") from error
