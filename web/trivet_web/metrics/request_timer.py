"""Times one API request: where the time to its first token went, latencies, token counts."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, field

from trivet import metrics
from trivet_web.answers.request_log import Course
from trivet_web.engines.mailbox import Arrival
from trivet_web.metrics.web_metrics import WebMetrics

TELL_S = 1.0  # how old a gap between tokens may be that no metric has: each token's own lock cost 3 us
_GAP_BOUNDS = metrics.INTER_TOKEN_LATENCY.buckets


@dataclass(slots=True)
class _Course:
    """What is known of one choice. Gaps are those between its tokens that the metrics do not have yet."""

    instance: str
    labels: tuple[str, ...]
    first_s: float  # of the first token
    last_s: float  # of the newest token
    told_s: float
    gaps: list[int] = field(default_factory=lambda: [0] * (len(_GAP_BOUNDS) + 1))  # by bucket
    gaps_s: float = 0.0  # their sum


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
            if arrival.piece.token_ids:
                self._on_tokens(arrival, instance_of(arrival.choice))
            if arrival.piece.finish_reason is not None:
                self._on_end(arrival, instance_of(arrival.choice))

    def close(self) -> None:
        """Tell the metrics what they do not have yet."""
        for course in self._courses.values():
            self._tell(course)

    def _on_tokens(self, arrival: Arrival, instance: str) -> None:
        at_s, count = arrival.at_s, len(arrival.piece.token_ids)
        course = self._courses.get(arrival.choice)
        if course is None:
            self._on_first(arrival, instance)
            return
        if course.instance != instance:  # it goes on elsewhere
            self._tell(course)
            course.instance, course.labels = instance, self._labels(instance)
        gap_s = at_s - course.last_s  # of all of these tokens
        course.gaps[bisect_left(_GAP_BOUNDS, gap_s / count)] += count
        course.gaps_s += gap_s
        course.last_s = at_s
        if at_s >= course.told_s + TELL_S:
            course.told_s = at_s
            self._tell(course)

    def _on_first(self, arrival: Arrival, instance: str) -> None:
        at_s, labels = arrival.at_s, self._labels(instance)
        self._courses[arrival.choice] = _Course(instance, labels, at_s, at_s, told_s=at_s)
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
            self._tell(course)
            self._metrics.observe(metrics.REQUEST_DECODE_TIME, labels, at_s - course.first_s)

    def _tell(self, course: _Course) -> None:
        if any(course.gaps):
            self._metrics.add(metrics.INTER_TOKEN_LATENCY, course.labels, course.gaps, course.gaps_s)
            course.gaps, course.gaps_s = [0] * len(course.gaps), 0.0

    def _labels(self, instance_id: str) -> tuple[str, ...]:
        return (self._model_name, instance_id, *self._place_of(instance_id))
