"""What a completion turns out to be, piece by piece: reasoning, content, calls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Reasoning:
    """More of the model's thinking."""

    text: str


@dataclass(frozen=True, slots=True)
class Content:
    """More of the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """A call begins; its arguments follow."""

    index: int  # of the call in this completion
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """More of the JSON text of a call's arguments."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class CallBroken:
    """A call that was announced is none: its arguments are no JSON, or end too early."""

    index: int
    source: str  # all of it, as the model wrote it


CallEvent: TypeAlias = Content | CallStart | CallArguments | CallBroken
Event: TypeAlias = Reasoning | CallEvent
