"""What every engine is measured at: rungs of `trivet bench --suite`, and the figure that counts in each."""

from __future__ import annotations

from dataclasses import dataclass

from trivet.bench.suite import LADDER, Rung

RUNGS = {rung.name: rung for rung in LADDER}


@dataclass(frozen=True, slots=True)
class Measure:
    """A rung with its sampling. `samples`: runs a round; their median counts, and a short run needs more."""

    name: str
    title: str
    rung: Rung
    figure: str
    samples: int = 1
    temperature: float = 0.0
    top_p: float = 1.0

    @property
    def is_time(self) -> bool:
        """Whether less is better."""
        return self.figure.endswith("_s") and not self.figure.endswith("_per_s")

    @property
    def unit(self) -> str:
        return "s" if self.is_time else "tokens/s"


def _measure(name: str, title: str, figure: str, samples: int = 1, is_sampled: bool = False) -> Measure:
    if is_sampled:  # as chat clients ask for it
        return Measure(f"{name}_sampled", f"{title}, sampled", RUNGS[name], figure, samples, 0.7, 0.9)
    return Measure(name, title, RUNGS[name], figure, samples)


_SPECS = (
    ("one_stream", "one stream, decode", "decode_tokens_per_s", 2),
    ("prefill_1024", "prefill of 1,024", "prefill_tokens_per_s", 3),
    ("at_once_16", "16 at once", "output_tokens_per_s", 1),
    ("at_once_32", "32 at once", "output_tokens_per_s", 1),
    ("shared_prefix_warm", "16 with a shared prefix, warm", "duration_s", 1),
    ("shared_prefix_cold", "16 with a shared prefix, cold", "duration_s", 1),
)
_DECODING = ("one_stream", "at_once_16", "at_once_32")
MEASURES = {
    measure.name: measure
    for measure in (
        *(_measure(*spec) for spec in _SPECS),
        *(_measure(*spec, is_sampled=True) for spec in _SPECS if spec[0] in _DECODING),
    )
}
