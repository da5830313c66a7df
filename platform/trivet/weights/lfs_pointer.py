"""The small text that git leaves in place of a large file where git-lfs is not installed."""

from __future__ import annotations

from trivet.errors import WeightsError

START = b"version https://git-lfs.github.com/spec/"


def refuse_pointer(start: bytes, file: object) -> None:
    """Args: start: the file's first bytes, at least as many as START has. Raises: WeightsError."""
    if start.startswith(START):
        raise WeightsError(
            f"{file} is a Git LFS pointer in place of the file itself: install git-lfs and run "
            "`git lfs pull` in its folder"
        )
