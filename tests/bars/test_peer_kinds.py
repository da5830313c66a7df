"""Which peers take part."""

from __future__ import annotations

from pathlib import Path

import pytest
from trivet_bars.peer_kinds import PEERS, Peer, UnknownPeer, chosen_peers


def install(folder: Path, peer: Peer) -> None:
    for part in (peer.program, peer.model):
        (folder / part).parent.mkdir(parents=True, exist_ok=True)
        (folder / part).touch()


def test_whichever_are_installed_take_part(tmp_path: Path) -> None:
    install(tmp_path, PEERS[0])
    found, missing = chosen_peers(tmp_path, [])
    assert (found, missing) == ([PEERS[0]], list(PEERS[1:]))


def test_an_unknown_peer_is_refused_with_those_that_are_known(tmp_path: Path) -> None:
    with pytest.raises(UnknownPeer, match=r"'llama'; choose from: .*llama\.cpp-q4_0"):
        chosen_peers(tmp_path, ["llama"])


def test_a_peer_that_was_asked_for_and_is_missing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="prepare_peers"):
        chosen_peers(tmp_path, ["vllm-bf16"])


def test_only_the_peers_that_were_asked_for_take_part(tmp_path: Path) -> None:
    for peer in PEERS:
        install(tmp_path, peer)
    assert chosen_peers(tmp_path, [PEERS[1].name]) == ([PEERS[1]], [])


@pytest.mark.parametrize("peer", PEERS, ids=lambda peer: peer.name)
def test_every_peer_is_told_its_threads_and_its_model(peer: Peer, tmp_path: Path) -> None:
    command = peer.command(tmp_path, 3, 8123)
    told = [*command, *peer.env(3).values()]
    assert str(tmp_path / peer.model) in command
    assert "3" in told or "0-2" in told


@pytest.mark.parametrize(
    "peer", [peer for peer in PEERS if peer.transport == "in process"], ids=lambda peer: peer.name
)
def test_every_runner_is_there(peer: Peer, tmp_path: Path) -> None:
    module = peer.command(tmp_path, 2)[2].rpartition(".")[2]
    assert (Path(__file__).parent / "trivet_bars" / "peers" / f"{module}.py").is_file()
