"""The demo's network takes the same training step through the GPU's kernels as on the CPU."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from support.helpers import relative_error

from oxijax._cli.demo_training import Classifier, Digits, place
from oxijax.nnx import DeformConv
from oxijax.testing import emulate_gpu

# (precision, relative error of the loss and of each parameter's gradient): two deformable layers
# and all that JAX does in between.
PRECISIONS = {"highest": 1e-5, "tensorfloat32": 1e-2}


@pytest.fixture(scope="module")
def network():
    """A network whose offsets matter, made outside of the contexts that compile all again."""
    network = Classifier(deformable=True, rngs=nnx.Rngs(0))
    for layer in network.convolutions[2:]:  # new layers have zeros here: no offset would matter
        assert isinstance(layer, DeformConv)
        kernel = layer.offset_conv.kernel
        noise = jax.random.normal(jax.random.key(1), kernel.shape)
        kernel.set_value(0.1 * noise)
    return network


@pytest.fixture(scope="module")
def image_and_label():
    digits = Digits.split(0)
    return place(digits.images[:1], jax.random.key(0)), digits.labels[:1]


def step(network, images, labels):
    """The loss of the network on a batch, and the gradient of every parameter."""

    @nnx.jit
    @nnx.value_and_grad
    def run(network):
        logits = network(images)
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    return run(nnx.clone(network))  # a step changes the running means


@pytest.mark.spread(1)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_training_step(precision, network, image_and_label):
    with jax.default_matmul_precision(precision):
        loss, gradients = step(network, *image_and_label)
        with emulate_gpu("sm_80"):
            emulated_loss, emulated = step(network, *image_and_label)
    tolerance = PRECISIONS[precision]
    assert abs(emulated_loss - loss) <= tolerance * abs(loss)
    leaves = dict(nnx.to_flat_state(nnx.state(gradients, nnx.Param)))
    others = dict(nnx.to_flat_state(nnx.state(emulated, nnx.Param)))
    assert len(leaves) == len(others) > 10
    moved = 0
    for path, leaf in leaves.items():
        expected, result = np.asarray(leaf.get_value()), np.asarray(others[path].get_value())
        # A bias before a BatchNorm has a gradient of nothing but rounding.
        if jnp.linalg.norm(expected) > 1e-5:
            moved += 1
            assert relative_error(result, expected) <= tolerance, path
    assert moved >= 10
    # The CPU knows no TF32: these were the kernels.
    assert precision == "highest" or emulated_loss != loss
