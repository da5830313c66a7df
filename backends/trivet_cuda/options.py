"""The backend's own options, `options.NAME` in a deployment's settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from trivet.errors import Unsupported
from trivet.runners.supported import chosen_options

WEIGHTS = ("auto", "plain")
SWITCH = ("on", "off")
GRAPHS = ("auto", "on", "off")
ATTENTION = ("triton", "flashinfer")


@dataclass(frozen=True, slots=True)
class CudaOptions:
    """What an operator may choose."""

    weights: str = "auto"  # auto: matrices stay in 4 or 8 bits where the file has them so; plain: dequantised
    graphs: str = "auto"  # decode steps as CUDA graphs; auto: not over several ranks
    self_test: str = "on"  # each kernel against its twin at start
    attention: str = "triton"  # whose kernels attend

    @property
    def captures(self) -> bool:
        """Whether decodes may be captured: FlashInfer plans each step on the host."""
        return self.graphs != "off" and self.attention != "flashinfer"

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> CudaOptions:
        """Raises: Unsupported naming the option and its values."""
        known = {"weights": WEIGHTS, "graphs": GRAPHS, "self_test": SWITCH, "attention": ATTENTION}
        found = cls(**chosen_options(options, known, "CUDA"))
        if found.attention == "flashinfer" and found.graphs == "on":
            raise Unsupported(
                "options.graphs is on and options.attention flashinfer, which plans each step on the host "
                "and is not captured; leave graphs out, or use attention=triton"
            )
        return found
