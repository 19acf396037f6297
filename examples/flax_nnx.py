"""A jitted Flax NNX model with a deformable layer, trained for a few steps.

Run it with `python examples/flax_nnx.py`; it needs `pip install ".[demo]"`.
"""

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax.typing import DTypeLike

import oxijax


class Model(nnx.Module):
    """Finds the brightest pixel of an image: returns its (y, x), from 0 to 1."""

    def __init__(self, rngs: nnx.Rngs, dtype: DTypeLike | None = None):
        self.stem = nnx.Conv(1, 16, (3, 3), strides=2, dtype=dtype, rngs=rngs)
        self.deform = oxijax.nnx.DeformConv(16, 16, (3, 3), strides=2, dtype=dtype, rngs=rngs)
        self.head = nnx.Linear(4 * 4 * 16, 2, dtype=dtype, rngs=rngs)

    def __call__(self, images: jax.Array) -> jax.Array:
        x = nnx.relu(self.stem(images))
        x = nnx.relu(self.deform(x))
        return self.head(x.reshape(len(x), -1))


@nnx.jit
def train_step(model: Model, optimizer: nnx.Optimizer, key: jax.Array) -> jax.Array:
    places = jax.random.uniform(key, (64, 2))
    rows, columns = jnp.indices((16, 16)) / 15
    distances = (rows - places[:, :1, None]) ** 2 + (columns - places[:, 1:, None]) ** 2
    images = jnp.exp(-20 * distances)[..., None]

    def loss(model: Model) -> jax.Array:
        return jnp.mean((model(images) - places) ** 2)

    value, gradients = nnx.value_and_grad(loss)(model)
    optimizer.update(model, gradients)
    return value


def main(steps: int = 200) -> list[float]:
    """Trains, prints the loss every 50 steps, and returns all losses."""
    model = Model(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(3e-3), wrt=nnx.Param)
    losses = []
    for step in range(steps):
        losses.append(float(train_step(model, optimizer, jax.random.key(step))))
        if step % 50 == 0 or step == steps - 1:
            print(f"step {step}: mean squared error {losses[-1]:.4f}")
    return losses


if __name__ == "__main__":
    main()
