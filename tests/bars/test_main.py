"""The command line of `tests/run bars`."""

from __future__ import annotations

from pathlib import Path

import pytest
from trivet_bars.__main__ import main, parsed
from trivet_bars.bars import Transport


def test_an_unknown_peer_ends_with_2_and_the_known_ones(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tmp_path), "--peers", "nope"]) == 2
    assert "choose from: openvino-int4" in capsys.readouterr().err


def test_a_peer_that_is_not_installed_ends_with_2_and_how_to_make_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tmp_path), "--peers", "vllm-bf16"]) == 2
    assert "prepare_peers" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--only", "nope"], "choose from: one_stream"),
        (["--transports", "pigeon"], "choose from: in-process, http"),
        (["--rounds", "0"], "'0' is no count"),
    ],
)
def test_wrong_words_are_refused_with_what_would_do(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as refused:
        parsed(words)
    assert refused.value.code == 2
    assert message in capsys.readouterr().err


def test_transports_are_named_as_on_a_command_line() -> None:
    assert parsed(["--transports", "http"]).transports == [Transport.HTTP]
    assert parsed(["--transports", "in-process"]).transports == [Transport.IN_PROCESS]
