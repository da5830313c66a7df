"""Client library of a Trivet server: `Client`, `AsyncClient`, and the values that they answer with.

Answers are typed values, streams can be closed, failures are `trivet.errors`. The examples in the docstrings
of the calls are run by the tests, against a server whose deployment `null` has a model that writes nonsense.
"""

from typing import TYPE_CHECKING, Any

from trivet.client.answers import (
    ChatChunk,
    ChatCompletion,
    Completion,
    Embeddings,
    Message,
    Ranking,
    Scores,
    Tokens,
    ToolCall,
    Usage,
)
from trivet.client.calls import Page
from trivet.client.fields import ChatFields, CompletionFields, DeploymentChanges
from trivet.client.inference import ChatMessage
from trivet.client.observations import BatchView, Histogram, Histograms, History, Lane, Request
from trivet.client.results import (
    Alias,
    AliasMove,
    Bundle,
    Deployment,
    Device,
    Event,
    FoundFiles,
    Instance,
    Model,
    Node,
    Plan,
    Pull,
    Status,
    Store,
    Verified,
    Version,
    VersionDetails,
    VersionFile,
)
from trivet.client.site_settings import SiteCheck, SitePackage, SiteSetting, SiteSettings
from trivet.client.stored_answers import Batch, File, Response, ResponseEvent
from trivet.client.streams import AsyncStream, Stream

if TYPE_CHECKING:
    from trivet.client.client import AsyncClient, Client

__all__ = [
    "Alias",
    "AliasMove",
    "AsyncClient",
    "AsyncStream",
    "Batch",
    "BatchView",
    "Bundle",
    "ChatChunk",
    "ChatCompletion",
    "ChatFields",
    "ChatMessage",
    "Client",
    "Completion",
    "CompletionFields",
    "Deployment",
    "DeploymentChanges",
    "Device",
    "Embeddings",
    "Event",
    "File",
    "FoundFiles",
    "Histogram",
    "Histograms",
    "History",
    "Instance",
    "Lane",
    "Message",
    "Model",
    "Node",
    "Page",
    "Plan",
    "Pull",
    "Ranking",
    "Request",
    "Response",
    "ResponseEvent",
    "Scores",
    "SiteCheck",
    "SitePackage",
    "SiteSetting",
    "SiteSettings",
    "Status",
    "Store",
    "Stream",
    "Tokens",
    "ToolCall",
    "Usage",
    "Verified",
    "Version",
    "VersionDetails",
    "VersionFile",
]


def __getattr__(name: str) -> Any:
    """The clients bring an HTTP library; the web server and others need the values alone."""
    if name not in ("AsyncClient", "Client"):
        raise AttributeError(f"module 'trivet.client' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module("trivet.client.client"), name)
