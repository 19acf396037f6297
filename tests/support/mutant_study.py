"""The tests of a family's mutants, and of the probes that notice them."""

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar, cast

import pytest

from ptx.emulator import Report
from support.mutant_reasons import NEGLIGIBLE
from support.mutants import Probe, Reason, check, check_constructs, text_of

__all__ = ["MutantStudy", "by_kernel"]

TARGET = "sm_80"


class MutantStudy:
    """The tests of a family's mutants, as the base of a class in the family's file.

    Attributes:
      sample, large_sample: mutants of each text.
      kernels: for each kernel the probes of its texts, by name.
      reasons: why mutants compute the same for all operands of the probes' sizes.
    """

    sample: ClassVar[int]
    large_sample: ClassVar[int]
    kernels: ClassVar[Mapping[str, Mapping[str, Sequence[Probe]]]]
    reasons: ClassVar[Sequence[Reason]]

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        if "kernel" in metafunc.fixturenames:
            metafunc.parametrize("kernel", self.kernels)
        if "probes" in metafunc.fixturenames:
            every = {name: p for probes in self.kernels.values() for name, p in probes.items()}
            metafunc.parametrize("probes", every.values(), ids=every)

    def test_a_sample_is_noticed(self, kernel: str) -> None:
        check(self.kernels[kernel], TARGET, self.sample, self.reasons, NEGLIGIBLE)

    @pytest.mark.slow
    def test_a_large_sample_is_noticed(self, kernel: str) -> None:
        check(self.kernels[kernel], TARGET, self.large_sample, self.reasons, NEGLIGIBLE)

    def test_every_instruction_runs(self, probes: Sequence[Probe]) -> None:
        text = text_of(probes[0])
        reports = [cast(Report, probe.run(text)) for probe in probes]
        assert functools.reduce(Report.merge, reports).never_executed == []

    def test_the_constructs_exist_that_reasons_name(self) -> None:
        check_constructs([*self.reasons, *NEGLIGIBLE])


def by_kernel(
    kernels: Iterable[str], probes: Mapping[str, Sequence[Probe]]
) -> dict[str, dict[str, Sequence[Probe]]]:
    """The probes that have a kernel's name, or begin with it and a hyphen."""
    return {
        kernel: {name: p for name, p in probes.items() if f"{name}-".startswith(f"{kernel}-")}
        for kernel in kernels
    }
