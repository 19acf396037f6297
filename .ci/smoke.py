"""The least that an installation does: values and a gradient on the CPU, an emulated launch.

With --without-handler, the least without a C compiler: what works, and what errors say.
"""

import pathlib
import sys

import jax
import jax.numpy as jnp

import oxijax
from oxijax import testing
from oxijax._core.launch import HandlerMissingError, find_handler


def check(deform_conv) -> None:
    """Reads a ramp half a pixel further to the right, through a kernel of one pixel."""
    ramp = jnp.broadcast_to(jnp.arange(8.0)[:, None], (1, 8, 8, 1))
    offset = jnp.broadcast_to(jnp.array([0, 0.5]), (1, 8, 8, 2))
    weight = jnp.full((1, 1, 1, 1), 2.0)

    def read(offset):
        return deform_conv(ramp, offset, weight)[:, :7, :7]  # the others reach beyond the edge

    expected = (2 * ramp + 1)[:, :7, :7]
    slope = jnp.zeros_like(offset).at[:, :7, :7, 1].set(2)
    value, gradient = read(offset), jax.grad(lambda offset: read(offset).sum())(offset)
    assert jnp.array_equal(value, expected), value
    assert jnp.array_equal(gradient, slope), gradient


def main(arguments: list[str]) -> None:
    if unknown := set(arguments) - {"--without-handler"}:
        raise SystemExit(f"unknown arguments: {unknown}")
    package = pathlib.Path(oxijax.__file__).parent
    if pathlib.Path(__file__).parents[1] == package.parent:
        raise SystemExit(f"{package} is the checkout's, not an installed one")
    check(oxijax.deform_conv)
    if arguments:
        try:
            find_handler()
        except HandlerMissingError as error:
            print(error)
        else:
            raise SystemExit(f"there is a handler: {find_handler()}")
        return
    assert find_handler().parents[2] == package, find_handler()
    with testing.emulate_gpu("sm_90"):
        check(jax.jit(oxijax.deform_conv))
    print(
        f"oxijax {oxijax.__version__} works: Python {sys.version.split()[0]}, jax {jax.__version__}"
    )


if __name__ == "__main__":
    main(sys.argv[1:])
