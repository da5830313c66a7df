"""The peers that can take part, where `prepare_peers` puts them, and how each is started.

A peer takes part if its program and its model are in the folder. None is started in Trivet's own environment.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from trivet_bars.bars import Transport

MAX_MODEL_LEN = 2048
SLOTS = 32  # requests at once that a server has to take
SLOT_TOKENS = 1088  # the longest request of the ladder is 1,024 tokens in and 1 out


def pinned_threads(threads: int) -> dict[str, str]:
    """One pinned OpenMP thread a core: unpinned, engines lost up to a half on this kind of machine."""
    return {"OMP_NUM_THREADS": str(threads), "OMP_PROC_BIND": "close", "OMP_PLACES": "cores"}


@dataclass(frozen=True, slots=True)
class Peer:
    """An engine at one weight format. `program` and `model` are paths inside the folder of the peers."""

    name: str
    transport: Transport
    program: str
    model: str
    arguments: Callable[[Path, Path, int, int], list[str]]  # program, model, threads, port (0 in process)
    skips: frozenset[str] = frozenset()  # measures that it has no answer to
    env: Callable[[int], dict[str, str]] = pinned_threads
    version: Sequence[str] = ()  # arguments by which a server tells its version

    def is_in(self, folder: Path) -> bool:
        return (folder / self.program).exists() and (folder / self.model).exists()

    def command(self, folder: Path, threads: int, port: int = 0) -> list[str]:
        return self.arguments(folder / self.program, folder / self.model, threads, port)

    def version_command(self, folder: Path) -> list[str]:
        return [str(folder / self.program), *self.version]


def _runner(module: str) -> Callable[[Path, Path, int, int], list[str]]:
    def arguments(program: Path, model: Path, threads: int, port: int) -> list[str]:
        return [str(program), "-m", f"trivet_bars.peers.{module}", str(model), str(threads)]

    return arguments


def _llama_server(program: Path, model: Path, threads: int, port: int) -> list[str]:
    """A KV cache for each slot: shared, 32 at once was a fifth slower."""
    numbers = {
        "--port": port,
        "--threads": threads,
        "--threads-batch": threads,
        "--parallel": SLOTS,
        "--ctx-size": SLOTS * SLOT_TOKENS,
    }
    words = [word for flag, number in numbers.items() for word in (flag, str(number))]
    return [str(program), "--model", str(model), "--alias", model.name, *words, "--no-webui", "--offline"]


def _vllm(program: Path, model: Path, threads: int, port: int) -> list[str]:
    numbers = {"--port": port, "--max-model-len": MAX_MODEL_LEN, "--max-num-seqs": 2 * SLOTS}
    words = [word for flag, number in numbers.items() for word in (flag, str(number))]
    words += ["--dtype", "bfloat16", "--served-model-name", model.name]
    return [str(program), "-m", "vllm.entrypoints.cli.main", "serve", str(model), *words]


def _vllm_env(threads: int) -> dict[str, str]:
    """KV cache in GiB; a thread a core, from core 0 on.

    It pins its threads itself: with OpenMP's own variables all its processes inherit the first one's core.
    """
    return {
        "VLLM_CPU_KVCACHE_SPACE": "2",
        "VLLM_CPU_OMP_THREADS_BIND": f"0-{threads - 1}",
        "VLLM_NO_USAGE_STATS": "1",
    }


NO_PREFIX_CACHE = frozenset({"shared_prefix_warm", "shared_prefix_cold"})
OPENVINO = "openvino/bin/python"
PEERS = (
    Peer("openvino-int4", Transport.IN_PROCESS, OPENVINO, "models/openvino-int4", _runner("openvino_genai")),
    Peer("openvino-int8", Transport.IN_PROCESS, OPENVINO, "models/openvino-int8", _runner("openvino_genai")),
    Peer(
        "onnxruntime-int4",
        Transport.IN_PROCESS,
        "onnxruntime/bin/python",
        "models/onnxruntime-int4",
        _runner("onnxruntime_genai"),
        skips=NO_PREFIX_CACHE,
    ),
    Peer(
        "llama.cpp-q4_0",
        Transport.HTTP,
        "llama.cpp/llama-server",
        "models/llama.cpp-q4_0.gguf",
        _llama_server,
        version=("--version",),
    ),
    Peer(
        "vllm-bf16",
        Transport.HTTP,
        "vllm/bin/python",
        "models/hf",
        _vllm,
        env=_vllm_env,
        version=("-c", "from importlib.metadata import version as v; print(v('vllm'), 'torch', v('torch'))"),
    ),
)


class UnknownPeer(ValueError):
    """A name that no peer has."""


def chosen_peers(folder: Path, names: Sequence[str]) -> tuple[list[Peer], list[Peer]]:
    """Those that take part, and those that are missing from the folder.

    Args:
        names: peers that have to take part; empty: whichever are there.

    Raises: UnknownPeer; FileNotFoundError where one that was named is not there.
    """
    known = {peer.name: peer for peer in PEERS}
    for name in names:
        if name not in known:
            raise UnknownPeer(f"there is no peer {name!r}; choose from: {', '.join(known)}")
    wanted = [peer for peer in PEERS if not names or peer.name in names]
    missing = [peer for peer in wanted if not peer.is_in(folder)]
    if names and missing:
        raise FileNotFoundError(
            f"{missing[0].name} needs {folder / missing[0].program} and {folder / missing[0].model}; "
            f"make them with tests/bars/prepare_peers {folder}"
        )
    return [peer for peer in wanted if peer.is_in(folder)], missing
