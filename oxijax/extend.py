"""Kernels of your own as JAX primitives: what code outside of oxijax builds them from.

A kernel is written with `ptx` (`ptx.Kernel`, `ptx.definition.KernelDefinition` and
`ptx.registry.register`), which knows nothing of JAX. The names of this module make a JAX primitive
of it:

- `KernelPrimitive` derives abstract evaluation, lowering, batching, differentiation and splitting
  over devices from one description. That has a `Result` for each result, a `Fold` for each way to
  absorb a vmapped axis, and a `Product` where the kernel is linear in each operand.
- `call` launches a kernel, inside of the function that a primitive has for GPUs. It raises
  `HandlerMissingError` where oxijax was installed without its launch handler.
- `match_varying` makes operands fit each other inside of `jax.shard_map`.

`docs/write_a_kernel.md` goes through all of it with one kernel.

How stable it is: these names and their arguments are public, and so are those of `ptx.definition`,
`ptx.registry`, `ptx.emulator` and `ptx.testing` that the guides import. Before version 1.0 a minor
version may change them, and then says so in a line of CHANGELOG.md. A patch version does not change
them. Modules with an underscore in their path are private and may change at any time.
"""

from oxijax._core.compat import match_varying
from oxijax._core.launch import HandlerMissingError, call
from oxijax._core.primitive.fold import Fold
from oxijax._core.primitive.kernel_primitive import KernelPrimitive, Product, Result

__all__ = [
    "Fold",
    "HandlerMissingError",
    "KernelPrimitive",
    "Product",
    "Result",
    "call",
    "match_varying",
]
