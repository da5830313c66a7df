"""What a completion turns out to be, piece by piece: reasoning, content, calls."""

from __future__ import annotations

from typing import TypeAlias

import msgspec


class Reasoning(msgspec.Struct, frozen=True):
    """More of the model's thinking."""

    text: str


class Content(msgspec.Struct, frozen=True):
    """More of the answer."""

    text: str


class CallStart(msgspec.Struct, frozen=True):
    """A call begins; its arguments follow."""

    index: int  # of the call in this completion
    name: str


class CallArguments(msgspec.Struct, frozen=True):
    """More of the JSON text of a call's arguments."""

    index: int
    text: str


class CallBroken(msgspec.Struct, frozen=True):
    """A call that was announced is none: its arguments are no JSON, or end too early."""

    index: int
    source: str  # all of it, as the model wrote it


CallEvent: TypeAlias = Content | CallStart | CallArguments | CallBroken
Event: TypeAlias = Reasoning | CallEvent
