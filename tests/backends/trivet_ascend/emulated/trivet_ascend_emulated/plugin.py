"""A plugin for tests: the Ascend backend over an emulated NPU, found where this folder is on sys.path."""

from trivet.contract import Backend
from trivet.plugins import hookimpl


@hookimpl
def trivet_backend() -> Backend:
    """The backend "ascend-emulated"; it imports no torch."""
    from trivet_ascend_emulated.backend import EmulatedAscend

    return EmulatedAscend()
