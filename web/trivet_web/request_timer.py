"""Times one API request: where the time to its first token went, latencies, token counts."""

from __future__ import annotations

from collections.abc import Callable

from trivet import metrics
from trivet_web.mailbox import Arrival
from trivet_web.web_metrics import WebMetrics


class RequestTimer:
    """Times are the relay's stamps of arrival, so a slow reader does not distort them."""

    def __init__(
        self,
        web_metrics: WebMetrics,
        model_name: str,
        arrived_s: float,
        place_of: Callable[[str], tuple[str, str]],
    ) -> None:
        """Args: place_of: backend and device of an instance."""
        self._metrics = web_metrics
        self._model_name = model_name
        self._arrived_s = arrived_s
        self._place_of = place_of
        self._sent_s = arrived_s
        self._first_s: dict[int, float] = {}  # of the first token, by choice
        self._last_s: dict[int, float] = {}  # of the newest token, by choice
        self._known_labels: dict[str, tuple[str, ...]] = {}  # by instance

    def sent(self, now_s: float, instance_id: str) -> None:
        """The request is tokenised and goes to its engine."""
        self._sent_s = now_s
        self._metrics.observe(metrics.TOKENIZE_TIME, self._labels(instance_id), now_s - self._arrived_s)

    def observe(self, arrivals: list[Arrival], instance_of: Callable[[int], str]) -> None:
        for arrival in arrivals:
            labels = self._labels(instance_of(arrival.choice))
            if arrival.piece.token_ids:
                self._on_tokens(arrival, labels)
            if arrival.piece.finish_reason is not None:
                self._on_end(arrival, labels)

    def _on_tokens(self, arrival: Arrival, labels: tuple[str, ...]) -> None:
        choice, piece, at_s = arrival
        if choice in self._last_s:
            gap_s = (at_s - self._last_s[choice]) / len(piece.token_ids)
            self._metrics.observe(metrics.INTER_TOKEN_LATENCY, labels, gap_s, len(piece.token_ids))
        else:
            self._first_s[choice] = at_s
            self._metrics.observe(metrics.TIME_TO_FIRST_TOKEN, labels, at_s - self._arrived_s)
            if piece.queue_s is not None:
                prefill_s = max(0.0, at_s - self._sent_s - piece.queue_s)
                self._metrics.observe(metrics.REQUEST_QUEUE_TIME, labels, piece.queue_s)
                self._metrics.observe(metrics.REQUEST_PREFILL_TIME, labels, prefill_s)
        self._last_s[choice] = at_s

    def _on_end(self, arrival: Arrival, labels: tuple[str, ...]) -> None:
        choice, piece, at_s = arrival
        self._metrics.observe(metrics.E2E_REQUEST_LATENCY, labels, at_s - self._arrived_s)
        self._metrics.observe(metrics.REQUEST_PROMPT_TOKENS, labels, piece.prompt_tokens)
        self._metrics.observe(metrics.REQUEST_GENERATION_TOKENS, labels, piece.completion_tokens)
        if choice in self._first_s:
            self._metrics.observe(metrics.REQUEST_DECODE_TIME, labels, at_s - self._first_s[choice])

    def _labels(self, instance_id: str) -> tuple[str, ...]:
        labels = self._known_labels.get(instance_id)
        if labels is None:
            labels = (self._model_name, instance_id, *self._place_of(instance_id))
            self._known_labels[instance_id] = labels
        return labels
