"""What is written down of an engine that has ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from trivet.config import BackendSettings

if TYPE_CHECKING:
    from conftest import Site

LIMIT = "memory_limit_gib of [backend.fake] is 0.03"


@pytest.mark.parametrize(
    ("code", "log", "told"),
    [
        (
            1,
            "Traceback\nMemoryError\n",
            f"exit code 1: its log ends with: MemoryError; {LIMIT}",
        ),
        (0, "", "ended by itself with exit code 0: it never answered; its interpreter is /bin/true"),
        (-11, "loading", f"killed by SIGSEGV: {LIMIT}"),
    ],
)
def test_an_end_without_a_word_is_told_by_the_log_and_what_its_backend_is_given(
    site: Site, code: int, log: str, told: str
) -> None:
    given = BackendSettings(python="/bin/true", memory_limit_gib=0.03)
    site.settings = msgspec.structs.replace(site.settings, backend={"fake": given})
    site.start_supervisor()
    site.launch()
    site.settle()
    site.process.order.log_file.parent.mkdir(parents=True, exist_ok=True)
    site.process.order.log_file.write_text(log)
    site.process.code = code
    site.settle()
    assert site.only().reason == f"attempt 2 in 0.5 s, because: {told}"
