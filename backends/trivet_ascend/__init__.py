"""Ascend NPUs: the torch-free half that finds and plans, and the runner over torch-npu."""

from trivet.contract import Backend
from trivet.plugins import hookimpl


@hookimpl
def trivet_backend() -> Backend:
    """The Ascend backend; neither torch nor a library of Huawei is imported."""
    from trivet_ascend.backend import AscendBackend

    return AscendBackend()
