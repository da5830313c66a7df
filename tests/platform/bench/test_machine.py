"""What a report says about the machine."""

from __future__ import annotations

from trivet.bench.machine import isa_flags, machine


def test_the_instruction_sets_that_choose_kernels_are_named() -> None:
    x86 = "processor\t: 0\nflags\t\t: fpu sse2 avx2 avx512f avx512_vnni\n"
    assert isa_flags(x86) == ["avx2", "avx512f", "avx512_vnni"]
    assert isa_flags("Features\t: fp asimd asimddp i8mm\n") == ["asimddp", "i8mm"]
    assert isa_flags("") == []


def test_this_machine_is_described() -> None:
    described = machine()
    assert described["cores"] >= 1  # type: ignore[operator]
    assert described["cpu"]
    assert described["torch"]
