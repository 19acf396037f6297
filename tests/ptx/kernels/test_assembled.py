"""Every kernel is assembled without spills, by what `python -m oxijax check` runs."""

import fnmatch
import glob
from pathlib import Path

import pytest
from support.contents import assembler

import ptx.kernels
from oxijax._cli import check
from ptx import registry
from ptx.isa.targets import TARGETS
from ptx.kernel import Written

KERNELS = {  # those of families: tests register kernels too
    name: kernel
    for name, kernel in registry.kernels().items()
    if name.startswith(tuple(ptx.kernels.__all__))
}
CONFIGS = "*/f*"  # bf16 has the instructions of f16, or where it has no tensor cores those of f32


def written(kernel: str, name: str, target: str) -> Written | None:
    """The text of a configuration; None where `check` has to say why there is none."""
    try:
        return KERNELS[kernel].write_named(name, target)
    except Exception:
        return None


@pytest.mark.parametrize("target", ["sm_75", "sm_80", "sm_90"])
@pytest.mark.parametrize("kernel", KERNELS)
def test_assembled_without_spills(kernel, target, kept):
    definition = KERNELS[kernel]
    names = fnmatch.filter(definition.configs, CONFIGS)
    texts = {name: written(kernel, name, target) for name in names}
    how = definition.needs, Path(check.__file__), assembler()
    wanted = [name for name, text in texts.items() if text is None or not kept(text, *how)]
    results = check.check([definition], [TARGETS[target]], [glob.escape(name) for name in wanted])
    assert [result.configuration for result in results] == wanted
    failures = [result for result in results if result.failed]
    assert failures == [], "\n".join(f"{r.name}: {r.messages}" for r in failures)


def test_each_kernel_has_texts_for_some_target():
    for kernel in KERNELS.values():
        names = fnmatch.filter(kernel.configs, CONFIGS)
        assert all(written(kernel.name, name, "sm_90") for name in names[:1])
        assert names
