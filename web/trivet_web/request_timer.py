"""Times one API request: TTFT, inter-token latency, end-to-end latency, token counts."""

from __future__ import annotations

from collections.abc import Callable

from trivet import metrics
from trivet_web.mailbox import Arrival
from trivet_web.web_metrics import WebMetrics


class RequestTimer:
    """Times are the relay's stamps of arrival, so a slow reader does not distort them."""

    def __init__(self, web_metrics: WebMetrics, model_name: str, arrived_s: float) -> None:
        self._metrics = web_metrics
        self._model_name = model_name
        self._arrived_s = arrived_s
        self._last_s: dict[int, float] = {}  # of the newest token, by choice

    def observe(self, arrivals: list[Arrival], instance_of: Callable[[int], str]) -> None:
        for choice, piece, at_s in arrivals:
            labels = (self._model_name, instance_of(choice))
            num_tokens = len(piece.token_ids)
            if num_tokens and choice not in self._last_s:
                self._metrics.observe(metrics.TIME_TO_FIRST_TOKEN, labels, at_s - self._arrived_s)
            elif num_tokens:
                gap_s = (at_s - self._last_s[choice]) / num_tokens
                self._metrics.observe(metrics.INTER_TOKEN_LATENCY, labels, gap_s, num_tokens)
            if num_tokens:
                self._last_s[choice] = at_s
            if piece.finish_reason is not None:
                self._metrics.observe(metrics.E2E_REQUEST_LATENCY, labels, at_s - self._arrived_s)
                self._metrics.observe(metrics.REQUEST_PROMPT_TOKENS, labels, piece.prompt_tokens)
                self._metrics.observe(metrics.REQUEST_GENERATION_TOKENS, labels, piece.completion_tokens)
