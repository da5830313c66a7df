"""A plugin for tests: the Ascend backend on torch-npu over the fake CANN."""

from trivet.contract import Backend
from trivet.plugins import hookimpl


@hookimpl
def trivet_backend() -> Backend:
    """The backend "ascend-fake-npu"; it imports no torch."""
    from trivet_fake_cann.backend import FakeNpuAscend

    return FakeNpuAscend()
