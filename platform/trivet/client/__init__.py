"""Client library of a Trivet server: `Client` and the values that it answers with."""

from trivet.client.client import Client
from trivet.client.inference import ChatMessage
from trivet.client.results import (
    ChatChunk,
    ChatCompletion,
    Completion,
    Deployment,
    Device,
    Event,
    Instance,
    Model,
    Plan,
    Status,
    Usage,
    Version,
)

__all__ = [
    "ChatChunk",
    "ChatCompletion",
    "ChatMessage",
    "Client",
    "Completion",
    "Deployment",
    "Device",
    "Event",
    "Instance",
    "Model",
    "Plan",
    "Status",
    "Usage",
    "Version",
]
