"""Trains the model of examples/flax_nnx.py for ten steps, on the CPU and on the GPUs.

All devices share each batch. The layers' plain convolutions are oxijax's, since the virtual GPU has
no cuDNN.
"""

import functools
import importlib
import pathlib
import sys
from collections.abc import Sequence
from typing import Any
from unittest import mock

import jax
import numpy as np
from flax import nnx
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import oxijax

sys.path.insert(0, str(pathlib.Path(__file__).parents[3] / "examples"))
flax_nnx = importlib.import_module("flax_nnx")


class DividedModel(flax_nnx.Model):
    """The example's model, on several devices."""

    def __init__(self, rngs: nnx.Rngs, mesh: Mesh):
        super().__init__(rngs)
        for convolution in (self.stem, self.deform.offset_conv):
            convolution.conv_general_dilated = functools.partial(
                oxijax.conv_general_dilated, precision="highest"
            )
        self.mesh = mesh
        nnx.update(self, jax.device_put(nnx.state(self), NamedSharding(mesh, P())))

    def __call__(self, images: jax.Array) -> jax.Array:
        divided = NamedSharding(self.mesh, P("batch"))
        return super().__call__(jax.lax.with_sharding_constraint(images, divided))


def losses_on(devices: Sequence[Any]) -> list[float]:
    mesh = Mesh(np.array(devices), "batch")
    on_mesh = functools.partial(DividedModel, mesh=mesh)
    with mock.patch.object(flax_nnx, "Model", on_mesh), jax.default_device(devices[0]):
        return flax_nnx.main(steps=10)


if __name__ == "__main__":
    jax.config.update("jax_default_matmul_precision", "highest")
    expected = losses_on(jax.devices("cpu")[:1])
    got = losses_on(jax.devices("cuda"))
    print("losses", [round(loss, 6) for loss in got])
    difference = np.abs(np.subtract(got, expected)).max()
    print(f"they differ from the CPU's by at most {difference:.1e}")
    assert difference < 1e-4
    assert got[-1] < got[0] / 5, "nothing is learnt"
    print("done on", len(jax.devices("cuda")))
