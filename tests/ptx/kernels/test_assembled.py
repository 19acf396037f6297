"""Every kernel is assembled without spills, by what `python -m oxijax check` runs."""

import pytest

import ptx.kernels
from oxijax._cli import check
from ptx import registry
from ptx.isa.targets import TARGETS

pytestmark = pytest.mark.proof

KERNELS = {  # those of families: tests register kernels too
    name: kernel
    for name, kernel in registry.KERNELS.items()
    if name.startswith(tuple(ptx.kernels.__all__))
}


@pytest.mark.parametrize("target", ["sm_75", "sm_80", "sm_90"])
@pytest.mark.parametrize("kernel", KERNELS)
def test_assembled_without_spills(kernel, target):
    definition = KERNELS[kernel]
    results = check.check([definition], [TARGETS[target]])
    assert [result.configuration for result in results] == list(definition.configs)
    assert all(result.kernels for result in results)
    failures = [result for result in results if result.failed]
    assert failures == [], "\n".join(f"{r.name}: {r.messages}" for r in failures)
