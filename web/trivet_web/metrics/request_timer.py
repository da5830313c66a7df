"""Times one API request: where the time to its first token went, latencies, token counts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from trivet import metrics
from trivet_web.answers.request_log import Course
from trivet_web.engines.mailbox import Arrival
from trivet_web.metrics.web_metrics import Recorder, WebMetrics


@dataclass(slots=True)
class _Course:
    """What is known of one choice."""

    instance: str
    gaps: Recorder  # between its tokens
    first_s: float  # of the first token
    last_s: float  # of the newest token


class RequestTimer:
    """Times are the relay's stamps of arrival, so a slow reader does not distort them."""

    __slots__ = ("_arrived_s", "_courses", "_metrics", "_model_name", "_place_of", "_sent_s", "course")

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
        self.course = Course()
        self._courses: dict[int, _Course] = {}  # by choice; of those with a token

    def sent(self, now_s: float, instance_id: str) -> None:
        """The request is tokenised and goes to its engine, which may be none yet: it is woken first."""
        self._sent_s = self.course.sent_s = now_s
        self.course.instance = instance_id
        if instance_id:
            self._metrics.observe(metrics.TOKENIZE_TIME, self._labels(instance_id), now_s - self._arrived_s)

    def observe(self, arrivals: list[Arrival], instance_of: Callable[[int], str]) -> None:
        for arrival in arrivals:
            piece, instance = arrival.piece, instance_of(arrival.choice)
            if count := len(piece.token_ids):
                if (course := self._courses.get(arrival.choice)) is None:
                    self._on_first(arrival, instance)
                else:
                    if course.instance != instance:  # it goes on elsewhere
                        course.instance, course.gaps = instance, self._gaps(self._labels(instance))
                    course.gaps.observe((arrival.at_s - course.last_s) / count, count)
                    course.last_s = arrival.at_s
            if piece.finish_reason is not None:
                self._on_end(arrival, instance)

    def _on_first(self, arrival: Arrival, instance: str) -> None:
        at_s, labels = arrival.at_s, self._labels(instance)
        self._courses[arrival.choice] = _Course(instance, self._gaps(labels), at_s, at_s)
        if self.course.first_s is None:
            self.course.first_s, self.course.queue_s = at_s, arrival.piece.queue_s
            self.course.instance = instance
        self._metrics.observe(metrics.TIME_TO_FIRST_TOKEN, labels, at_s - self._arrived_s)
        if (queue_s := arrival.piece.queue_s) is not None:
            prefill_s = max(0.0, at_s - self._sent_s - queue_s)
            self._metrics.observe(metrics.REQUEST_QUEUE_TIME, labels, queue_s)
            self._metrics.observe(metrics.REQUEST_PREFILL_TIME, labels, prefill_s)

    def _on_end(self, arrival: Arrival, instance: str) -> None:
        labels, piece, at_s = self._labels(instance), arrival.piece, arrival.at_s
        self._metrics.observe(metrics.E2E_REQUEST_LATENCY, labels, at_s - self._arrived_s)
        self._metrics.observe(metrics.REQUEST_PROMPT_TOKENS, labels, piece.prompt_tokens)
        self._metrics.observe(metrics.REQUEST_GENERATION_TOKENS, labels, piece.completion_tokens)
        if course := self._courses.get(arrival.choice):
            self._metrics.observe(metrics.REQUEST_DECODE_TIME, labels, at_s - course.first_s)

    def _gaps(self, labels: tuple[str, ...]) -> Recorder:
        return self._metrics.recorder(metrics.INTER_TOKEN_LATENCY, labels)

    def _labels(self, instance_id: str) -> tuple[str, ...]:
        return (self._model_name, instance_id, *self._place_of(instance_id))
