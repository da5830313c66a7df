"""What a view reads and answers, written at the view: /openapi.json is made of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

V = TypeVar("V", bound=Callable[..., Any])
_ATTRIBUTE = "trivet_operation"
JSON = "application/json"
EVENTS = "text/event-stream"


@dataclass(frozen=True, slots=True)
class Operation:
    """Types are msgspec structs; None: there is no such thing."""

    returns: Any = None
    body: Any = None
    stream: Any = None  # of one event, where the request may ask for a stream
    stream_media_type: str = EVENTS
    failed: Any = None  # None: OpenAI's error object
    status: int = 200
    media_type: str = JSON  # of the answer
    other_media_type: str | None = None  # which it may have instead
    failed_media_type: str = JSON
    body_media_type: str = JSON
    query: Mapping[str, type] = field(default_factory=dict)


def documented(returns: Any = None, **fields: Any) -> Callable[[V], V]:
    """Mark a view; fields are those of `Operation`."""

    def mark(view: V) -> V:
        setattr(view, _ATTRIBUTE, Operation(returns, **fields))
        return view

    return mark


def operation_of(view: Callable[..., Any]) -> Operation | None:
    """None: nobody wrote it down."""
    found = getattr(view, _ATTRIBUTE, None)
    return found if isinstance(found, Operation) else None
