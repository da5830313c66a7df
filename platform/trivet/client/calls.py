"""What a call of the library is, apart from how it is carried out: the same for `Client` and `AsyncClient`.

A `Group` holds related calls. A method of a group only says what is asked (`Call`, `StreamCall`); the
decorators `call` and `stream` have the group's connection carry it out, and give the method the type that
fits: an answer or a `Stream` from a `Connection`, a coroutine or an `AsyncStream` from an `AsyncConnection`.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import wraps
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Concatenate, Generic, ParamSpec, TypeAlias, TypeVar, overload
from urllib.parse import quote

import msgspec

if TYPE_CHECKING:
    from trivet.client.async_connection import AsyncConnection
    from trivet.client.connection import Connection
    from trivet.client.streams import AsyncStream, Stream

T = TypeVar("T")
U = TypeVar("U")
M = TypeVar("M")
P = ParamSpec("P")
C = TypeVar("C", bound="Connection | AsyncConnection")
JsonObject: TypeAlias = Mapping[str, object]
ROOT = "/platform/v1"


class Listing(msgspec.Struct, Generic[T], frozen=True):
    """`{"data": [...]}`; the rest is of those that come in pages."""

    data: tuple[T, ...] = ()
    last_id: str | None = None
    has_more: bool = False


class Page(tuple[T, ...]):
    """A part of a list, in order; the next part is what comes `after` its `last_id`."""

    last_id: str | None
    has_more: bool

    @classmethod
    def of(cls, listing: Listing[T]) -> Page[T]:
        page = cls(listing.data)
        page.last_id, page.has_more = listing.last_id, listing.has_more
        return page


@dataclass(frozen=True, slots=True)
class Upload:
    """A file of a multipart form."""

    filename: str
    content: bytes | Path  # a path is read while it is sent, and anew at each attempt
    fields: Mapping[str, str]

    @contextmanager
    def opened(self) -> Iterator[bytes | BinaryIO]:
        """Raises: OSError."""
        if isinstance(self.content, bytes):
            yield self.content
        else:
            with self.content.open("rb") as file:
                yield file


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """One request and what its answer becomes."""

    method: str
    path: str
    answer: Any  # the type that the body is decoded as; bytes and str: the body itself
    body: object = None  # sent as JSON; None: no body
    query: JsonObject = field(default_factory=dict)  # what is None is left out
    upload: Upload | None = None
    read: Callable[[Any], T] | None = None  # from `answer` to what the caller gets; None: as it is

    def then(self, read: Callable[[T], U]) -> Call[U]:
        """The same request, whose answer `read` takes further."""
        before = self.read
        chained: Callable[[Any], U] = read if before is None else lambda answer: read(before(answer))
        return replace(self, read=chained)  # type: ignore[arg-type, return-value]  # replace() keeps T


@dataclass(frozen=True, slots=True)
class StreamCall(Generic[T]):
    """One request that is answered in pieces."""

    method: str
    path: str
    item: Any  # the type of an event's data; str and bytes: no events, but text or bytes as they come
    body: object = None
    query: JsonObject = field(default_factory=dict)
    is_endless: bool = False  # pieces may be any time apart
    is_last: Callable[[T], bool] | None = None  # which event ends it; None: "[DONE]"


@dataclass(frozen=True, slots=True)
class Download:
    """A stream of bytes that becomes a file."""

    source: StreamCall[bytes]
    place: Path


def ask(
    method: str, path: str, answer: type[T], *, body: object = None, query: JsonObject | None = None
) -> Call[T]:
    """A call whose answer is one object."""
    return Call(method, path, answer, body, query or {})


def ask_list(path: str, item: type[T], query: JsonObject | None = None) -> Call[tuple[T, ...]]:
    """A call whose answer is a list."""
    return ask("GET", path, Listing[item], query=query).then(lambda listing: listing.data)  # type: ignore[valid-type]


def ask_page(path: str, item: type[T], query: JsonObject) -> Call[Page[T]]:
    """A call whose answer is a part of a list."""
    return ask("GET", path, Listing[item], query=query).then(Page.of)  # type: ignore[valid-type]


def nothing(_: object) -> None:
    """The answer of a call of which there is nothing to tell."""


def place(*parts: str) -> str:
    """A path of parts, any characters in them."""
    return "/".join(quote(part, safe="") for part in parts)


def given(**fields: object) -> dict[str, object]:
    """Without those that are None."""
    return {name: value for name, value in fields.items() if value is not None}


class Group(Generic[C]):
    """Calls over one connection."""

    def __init__(self, connection: C) -> None:
        self._connection = connection


class Method(Generic[P, M]):
    """A method of a group as it is written: what it makes of its arguments."""

    def __init__(self, make: Callable[Concatenate[Any, P], M]) -> None:
        self.make = make
        self.__doc__ = make.__doc__

    def __repr__(self) -> str:  # what `help` shows of a group
        return f"{self.make.__name__}{signature(self.make)}"


class call(Method[P, Call[T]], Generic[P, T]):  # noqa: N801  # used as a decorator
    """A method of a group that is one request and one answer."""

    @overload
    def __get__(self, group: None, owner: type) -> call[P, T]: ...
    @overload
    def __get__(self, group: Group[Connection], owner: type) -> Callable[P, T]: ...
    @overload
    def __get__(self, group: Group[AsyncConnection], owner: type) -> Callable[P, Coroutine[Any, Any, T]]: ...
    def __get__(self, group: Group[Any] | None, owner: type) -> Any:
        if group is None:
            return self

        @wraps(self.make)
        def send(*args: P.args, **kwargs: P.kwargs) -> Any:
            return group._connection.send(self.make(group, *args, **kwargs))

        return send


class stream(Method[P, StreamCall[T]], Generic[P, T]):  # noqa: N801  # used as a decorator
    """A method of a group that is one request, answered in pieces."""

    @overload
    def __get__(self, group: None, owner: type) -> stream[P, T]: ...
    @overload
    def __get__(self, group: Group[Connection], owner: type) -> Callable[P, Stream[T]]: ...
    @overload
    def __get__(self, group: Group[AsyncConnection], owner: type) -> Callable[P, AsyncStream[T]]: ...
    def __get__(self, group: Group[Any] | None, owner: type) -> Any:
        if group is None:
            return self

        @wraps(self.make)
        def open_stream(*args: P.args, **kwargs: P.kwargs) -> Any:
            return group._connection.stream(self.make(group, *args, **kwargs))

        return open_stream


class download(Method[P, Download], Generic[P]):  # noqa: N801  # used as a decorator
    """A method of a group that brings a file and returns its size in bytes."""

    @overload
    def __get__(self, group: None, owner: type) -> download[P]: ...
    @overload
    def __get__(self, group: Group[Connection], owner: type) -> Callable[P, int]: ...
    @overload
    def __get__(
        self, group: Group[AsyncConnection], owner: type
    ) -> Callable[P, Coroutine[Any, Any, int]]: ...
    def __get__(self, group: Group[Any] | None, owner: type) -> Any:
        if group is None:
            return self

        @wraps(self.make)
        def bring(*args: P.args, **kwargs: P.kwargs) -> Any:
            return group._connection.download(self.make(group, *args, **kwargs))

        return bring
