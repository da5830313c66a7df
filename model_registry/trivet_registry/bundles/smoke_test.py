"""Loads a model in a process of its own and has it answer one token, as a launch would."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from trivet.client.results import Plan
from trivet.config import Settings, environment_of_home
from trivet.confining import confinement
from trivet.errors import ModelFilesError, Unavailable
from trivet_registry.child_process import run_child

TIMEOUT_S = 1800.0  # large weights from a slow disk
SMALL: Mapping[str, str] = {"max_model_len": "64", "max_num_seqs": "1", "num_gpu_blocks_override": "16"}
_TRIVET = "import sys; from trivet.cli import main; sys.exit(main())"


def answers_one_token(
    path: Path,
    site: Settings,
    plan: Callable[[Path, Mapping[str, str]], Plan],
    check: Callable[[], None] = lambda: None,
) -> None:
    """On the device that a launch would choose now, with what its engines have.

    That is their interpreter, their variables, their cores and their limit of memory.

    Args:
        plan: what a launch with these engine settings would take.
        check: called twice a second; it may raise to end the test.

    Raises: ModelFilesError.
    """
    found = plan(path, SMALL)
    if not found.fits:
        raise _failed(found.reason or "no device can run it")
    engines = site.for_backend(found.backend)
    settings = [part for name, value in SMALL.items() for part in ("--set", f"{name}={value}")]
    command = [*(engines.python, "-P", "-c", _TRIVET, "run", str(path)), *settings]
    command += ["--backend", found.backend, *(["--device", found.device] if found.device else [])]
    command += ["--prompt", "Hello", "--raw", "--max-tokens", "1", "--json"]
    base = environment_of_home(site.paths.home)
    environment = {**base, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0", **engines.env}
    try:
        code, said = run_child(command, TIMEOUT_S, check, environment, confinement(site, found.backend))
    except TimeoutError:
        raise _failed(f"it had {TIMEOUT_S:.0f} s") from None
    except Unavailable as error:
        raise _failed(str(error)) from error
    except OSError as error:
        raise _failed(
            f"{engines.python}, which [backend.{found.backend}] names, cannot be started: {error.strerror}"
        ) from error
    if code != 0:
        raise _failed(" ".join(said.strip().splitlines()[-2:])[-500:] or f"exit status {code}")


def _failed(reason: str) -> ModelFilesError:
    return ModelFilesError(f"the model did not answer one token: {reason}; it was not registered")
