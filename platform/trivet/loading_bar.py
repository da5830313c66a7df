"""How far the loading of a model is, for who waits at a terminal."""

from __future__ import annotations

from typing import Self

from tqdm import tqdm


class LoadingBar:
    """A progress bar in bytes, shown on a terminal only."""

    def __init__(self, name: str) -> None:
        self._bar = tqdm(desc=f"load {name}", unit="B", unit_scale=True, disable=None, leave=False)

    def update(self, done: int, total: int) -> None:
        self._bar.total = total
        self._bar.update(done - self._bar.n)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.close()
