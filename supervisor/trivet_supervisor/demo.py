"""`trivet demo`: one real model, one real answer, streamed, with what it took."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TextIO

from trivet.commands.launch import instances_of, wait_until_ready
from trivet.demo_model import find_demo_model
from trivet.errors import GenerationError, NotFound, Unavailable

if TYPE_CHECKING:
    from trivet.client import Client, Deployment

NAME = "smollm2"
QUESTION = "What is the capital of France, and what is it known for?"
MAX_TOKENS = 160


def launch_demo(client: Client, out: TextIO) -> bool:
    """Register and launch the demo model, unless it runs already; return when it is ready.

    Returns: whether it was launched now.
    Raises: ModelFilesError naming the pip command where the model is not installed; Unavailable.
    """
    path = find_demo_model()
    started_s = time.monotonic()
    before: frozenset[str] = frozenset()
    is_new = not _is_wanted(client)
    if is_new:
        version = client.models.add(str(path), NAME)
        before = instances_of(client.deployments.create(f"{NAME}:{version.version}", name=NAME))
    seen = ""

    def show(deployment: Deployment) -> None:
        nonlocal seen
        states = ", ".join(sorted({instance.state for instance in deployment.instances})) or "pending"
        if states != seen:
            print(f"{NAME}: {states}", file=out, flush=True)
            seen = states

    _, failed = wait_until_ready(client, NAME, show, before=before)
    if failed is not None:
        raise Unavailable(f"{NAME} {failed.state}: {failed.reason}; more: trivet logs {NAME}")
    print(f"{NAME} is ready after {time.monotonic() - started_s:.1f} s", file=out, flush=True)
    return is_new


def chat_once(client: Client, out: TextIO) -> None:
    """Ask one question and print the answer as it comes. Raises: GenerationError where none comes."""
    print(f"\n> {QUESTION}\n", file=out, flush=True)
    started_s = time.monotonic()
    first_s = last_s = None
    num_tokens = 0
    messages = [{"role": "user", "content": QUESTION}]
    for chunk in client.chat.stream(NAME, messages, max_tokens=MAX_TOKENS, temperature=0):
        if chunk.text:
            last_s = time.monotonic()
            first_s = last_s if first_s is None else first_s
            print(chunk.text, end="", file=out, flush=True)
        if chunk.usage is not None:
            num_tokens = chunk.usage.completion_tokens
    if first_s is None or last_s is None or num_tokens == 0:
        raise GenerationError("the demo model gave no answer; see `trivet logs smollm2`")
    rate = (num_tokens - 1) / (last_s - first_s) if last_s > first_s else 0.0
    ttft_ms = 1000 * (first_s - started_s)
    print(f"\n\nTTFT {ttft_ms:.0f} ms, {num_tokens} tokens, {rate:.1f} tokens/s", file=out, flush=True)


def _is_wanted(client: Client) -> bool:
    try:
        return client.deployments.get(NAME).desired == "running"
    except NotFound:
        return False
