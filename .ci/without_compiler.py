"""What works, and what is said, where oxijax was installed without a C compiler."""

import jax.numpy as jnp

import oxijax
from oxijax import testing
from oxijax._core.launch import HandlerMissingError

x = jnp.ones((1, 8, 8, 4))
y = oxijax.deform_conv(x, jnp.zeros((1, 8, 8, 18)), jnp.ones((3, 3, 4, 2)))
assert y[0, 4, 4, 0] == 36
try:
    with testing.emulate_gpu():
        raise SystemExit("there is a handler")
except HandlerMissingError as error:
    print(error)
