"""Pages of a list as OpenAI has them: `limit`, `after` an id, `order`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from flask import request

from trivet.errors import RequestError

QUERY: dict[str, type] = {"after": str, "limit": int, "order": str}


class HasId(Protocol):
    """What is listed."""

    @property
    def id(self) -> str: ...


T = TypeVar("T", bound=HasId)


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """A part of a list."""

    data: list[T]
    has_more: bool

    @property
    def first_id(self) -> str | None:
        return self.data[0].id if self.data else None

    @property
    def last_id(self) -> str | None:
        return self.data[-1].id if self.data else None


def page_of_request(newest_first: Sequence[T], of_what: str, default_limit: int, max_limit: int) -> Page[T]:
    """The part that the query asks for. Raises: RequestError naming the parameter."""
    items = list(newest_first)
    limit, order = _limit(default_limit, max_limit), request.args.get("order", "desc")
    if order not in ("asc", "desc"):
        raise RequestError(f"order is {order[:80]!r}; it must be asc or desc", param="order")
    if order == "asc":
        items.reverse()
    if (after := request.args.get("after")) is not None:
        places = [place for place, item in enumerate(items, start=1) if item.id == after]
        if not places:
            raise RequestError(
                f"after is {after[:80]!r}, which is none of {of_what}; send the last_id of a page",
                param="after",
            )
        items = items[places[0] :]
    return Page(items[:limit], has_more=len(items) > limit)


def _limit(default: int, most: int) -> int:
    """Raises: RequestError."""
    given = request.args.get("limit", str(default))
    if not (given.isascii() and given.isdigit() and 1 <= int(given[:9]) <= most):
        raise RequestError(f"limit is {given[:80]!r}; it must be 1 to {most}", param="limit")
    return int(given)
