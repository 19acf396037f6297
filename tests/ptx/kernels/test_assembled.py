"""Every kernel is assembled without spills, by what `python -m oxijax check` runs."""

import fnmatch
import glob

import pytest

import ptx.kernels
from oxijax._cli import check
from ptx import registry
from ptx.isa.targets import TARGETS

pytestmark = pytest.mark.proof

KERNELS = {  # those of families: tests register kernels too
    name: kernel
    for name, kernel in registry.kernels().items()
    if name.startswith(tuple(ptx.kernels.__all__))
}
CONFIGS = "*/f*"  # bf16 has the instructions of f16, or where it has no tensor cores those of f32


@pytest.mark.parametrize("target", ["sm_75", "sm_80", "sm_90"])
@pytest.mark.parametrize("kernel", KERNELS)
def test_assembled_without_spills(kernel, target):
    definition = KERNELS[kernel]
    names = fnmatch.filter(definition.configs, CONFIGS)
    results = check.check([definition], [TARGETS[target]], [glob.escape(name) for name in names])
    assert [result.configuration for result in results] == names
    failures = [result for result in results if result.failed]
    assert failures == [], "\n".join(f"{r.name}: {r.messages}" for r in failures)


def test_each_kernel_has_texts_for_some_target():
    for kernel in KERNELS.values():
        names = fnmatch.filter(kernel.configs, CONFIGS)
        assert kernel.write_named(names[0], "sm_90").text
