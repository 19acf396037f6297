"""Layers with the weights of PyTorch's deformable convolutions compute what these do."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.deform_conv_modules import LIBRARIES, apply, layer_of, recorded
from support.helpers import assert_close

import oxijax

PACKS = [case for case in recorded if not case.startswith("ASPP")]
CASES = [
    *((library, case) for case in PACKS for library in LIBRARIES),
    *(("nnx", case) for case in recorded if case.startswith("ASPP")),
]
each_case = pytest.mark.parametrize(("library", "case"), CASES)
# Multiples of the sigmoid that the modules don't have.
OTHER_SCALES = {"ModulatedDeformConv2dPack/plain": 2, "DeformableConv2d/3": 1}
NAMES = {"DeformableConv2d": "birefnet", "ASPPDeformable": "birefnet"}


def loaded(library: str, case: str, dtype: Any, **changed: Any) -> Any:
    module = recorded[case]
    return oxijax.convert.from_torch(layer_of(library, module, dtype, **changed), module.state)


def result(layer: Any, case: str, dtype: Any) -> jax.Array:
    module = recorded[case]
    return jax.jit(lambda inputs: apply(layer, module, dtype, inputs))(dict(module.inputs))


@pytest.mark.spread(8, rest="proof")
@each_case
def test_result_in_float32(library, case):
    y = result(loaded(library, case, jnp.float32), case, jnp.float32)
    assert_close(y, recorded[case].results["y"], 1e-6)


@pytest.mark.spread(2, rest="proof")
@pytest.mark.parametrize(
    ("library", "case"),
    [(LIBRARIES[i % 3] if case in PACKS else "nnx", case) for i, case in enumerate(recorded)],
)
@pytest.mark.usefixtures("x64")
def test_result_and_gradients_in_float64(library, case):
    module, dtype = recorded[case], jnp.float64
    layer = loaded(library, case, dtype)

    @jax.jit
    def run(inputs, grad_y):
        y, vjp = jax.vjp(lambda inputs: apply(layer, module, dtype, inputs), inputs)
        return y, vjp(grad_y)[0]

    inputs = {name: jnp.asarray(value, dtype) for name, value in module.inputs.items()}
    y, gradients = run(inputs, jnp.asarray(module.grad_y, dtype))
    found = {"y": y, **{f"d{name}": value for name, value in gradients.items()}}
    assert found.keys() == module.results.keys() - {"dweight", "dbias"}
    for name, value in found.items():
        assert_close(value, module.results[name], 1e-12, name)


@pytest.mark.spread(3, rest="proof")
@pytest.mark.parametrize(
    ("library", "case", "changed"),
    [
        *((library, case, {}) for library, case in CASES),
        *(
            (library, case, {"mask_scale": scale})
            for case, scale in OTHER_SCALES.items()
            for library in LIBRARIES
        ),
    ],
)
def test_round_trip(library, case, changed):
    """All of a state returns, to the bit, whatever multiple of a sigmoid the layer's mask is."""
    module = recorded[case]
    layer = loaded(library, case, jnp.float32, **changed)
    found = oxijax.convert.to_torch(layer, deform_conv=NAMES.get(module.kind, "mmcv"))
    counts = {name for name in module.state if name.endswith("num_batches_tracked")}
    assert found.keys() == module.state.keys() - counts
    for name, value in found.items():
        assert value.flags.c_contiguous, name
        np.testing.assert_array_equal(value, module.state[name], name)


@pytest.mark.quick
@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("case", OTHER_SCALES)
def test_masks_are_converted(library, case):
    """The results are the module's with the other multiple of the sigmoid too."""
    layer = loaded(library, case, jnp.float32, mask_scale=OTHER_SCALES[case])
    assert_close(result(layer, case, jnp.float32), recorded[case].results["y"], 1e-6)


def test_names_of_dcnv2():
    case = "ModulatedDeformConv2dPack/plain"
    state = {
        name.replace("conv_offset", "conv_offset_mask"): value
        for name, value in recorded[case].state.items()
    }
    layer = oxijax.convert.from_torch(layer_of("nnx", recorded[case], jnp.float32), state)
    found = oxijax.convert.to_torch(layer, deform_conv="dcnv2")
    assert found.keys() == state.keys()
    for name, value in state.items():
        np.testing.assert_array_equal(found[name], value, name)
