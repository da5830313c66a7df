"""schemathesis over /openapi.json: no 5xx, and every answer is what the document says.

Beside a server of its own (site.py): it may do whatever the document offers, with the site's token and
without.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from conftest import Server

HERE = Path(__file__).parent
CHECKS = "no_fault_of_the_server,status_code_conformance,content_type_conformance,response_schema_conformance"
MIN_CASES = 500
# /health/ready is a bare 503 once no model is left; CPython 3.11 may fail to parse in two threads.
OPTIONS = (
    "--exclude-path /health/ready --workers 1 --phases coverage,fuzzing --seed 8 --no-shrink "
    "--continue-on-failure --no-color"
)
BUDGET_S = 30  # each; its cases come in an order that the seed gives


@pytest.mark.parametrize("token", ["", "$TRIVET_CLIENTS_TOKEN"])
def test_answers_are_what_the_document_says(server: Server, token: str, tmp_path: Path) -> None:
    who = f'--header "Authorization: Bearer {token}"' if token else ""
    schemathesis = Path(sys.executable).with_name("schemathesis")
    run = f'"{schemathesis}" run "$TRIVET_CLIENTS_URL/openapi.json" --checks {CHECKS} {OPTIONS} {who}'
    done = subprocess.run(
        [server.python, HERE / "site.py", "sh", "-c", f"{run} --max-time {BUDGET_S}"],
        env={**os.environ, "SCHEMATHESIS_HOOKS": "schemathesis_hooks", "PYTHONPATH": str(HERE)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=10 * BUDGET_S,
    )
    assert done.returncode == 0, done.stdout[-12000:] + done.stderr[-4000:]
    sent, passed = map(int, re.findall(r"(\d+) generated, (\d+) passed", done.stdout)[0])
    assert sent == passed > MIN_CASES
