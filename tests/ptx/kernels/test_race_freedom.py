"""Shipped kernels are free of races in every schedule, and are not without a synchronisation.

The verifier is part of the extra `test` where it has a wheel, Linux on x86-64. It follows small
calls; the emulator runs what it proves of each.
"""

from __future__ import annotations

import functools

import pytest
from support.race_freedom import (
    Launched,
    launched,
    verdict,
    with_more_accesses,
    with_plain_addresses,
)
from support.small_calls import CASES, Case, without_synchronisation

from ptx.isa.assembler import assemble

pytestmark = pytest.mark.proof

pytest.importorskip("sentryward")

RACE = {
    "potential_race",
    # What is read from shared memory, and decides on addresses, may not have been written.
    "unsupported: shared_constant_dependency_unproven",
}
QUICK = ["conv_forward-tiled", "conv_backward_weight"]  # whose proofs take a second or less


def rewritten(text: str, case: Case) -> str:
    """What the verifier is given in place of a text."""
    plain = with_plain_addresses(text)
    return with_more_accesses(plain) if case.more else plain


@functools.cache
def launch_of(name: str) -> Launched:
    """The launch, for which the text with plain addresses computes what the kernel does."""
    call = CASES[name].call
    return launched(call, with_plain_addresses(call.text))


def check_without_synchronisation(name: str, folder) -> None:
    case = CASES[name]
    texts = [rewritten(broken.text, case) for broken in without_synchronisation(case.call.text)]
    verdicts = [verdict(text, launch_of(name), folder) for text in texts]
    assert set(verdicts) <= {"race_free", *RACE}
    assert verdicts.count("race_free") == case.needless
    assert verdicts.count("potential_race") >= 3


@pytest.mark.parametrize("name", CASES)
def test_race_free(name, tmp_path):
    case = CASES[name]
    text = rewritten(case.call.text, case)
    assemble(text, "sm_80")
    assert verdict(text, launch_of(name), tmp_path) == "race_free"


@pytest.mark.parametrize("name", QUICK)
def test_without_its_synchronisation_it_is_not(name, tmp_path):
    check_without_synchronisation(name, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(CASES).difference(QUICK)))
def test_no_kernel_is_without_its_synchronisation(name, tmp_path):
    check_without_synchronisation(name, tmp_path)
