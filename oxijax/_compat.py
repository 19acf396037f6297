"""Every private JAX API that oxijax uses, and nothing else.

Checked on jax 0.10.2, 0.11.2 and 0.12.0.1.
"""

from typing import Any

import jax
from jax._src import core

__all__ = ["check_varying", "match_varying"]


def check_varying(name: str, *avals: Any) -> None:
    """Raises where operands of primitive `name` vary over different manual mesh axes.

    Inside `jax.shard_map(check_vma=True)` a type says over which mesh axes a value
    varies. An abstract evaluation that ignores this makes gradients of replicated
    operands silently wrong: nothing sums them over the mesh.

    `jax._src.core.standard_vma_rule`: no public twin in 0.10.2, 0.11.2 or 0.12.0.1.
    """
    core.standard_vma_rule(name, *avals)


def match_varying(*operands: jax.Array) -> list[jax.Array]:
    """Casts the operands so that all vary over the same manual mesh axes.

    Outside `jax.shard_map` they come back as they are. The transpose of the cast is the
    sum over the mesh that a replicated operand's gradient needs.

    `jax._src.core.auto_insert_reshard`: no public twin in 0.10.2, 0.11.2 or 0.12.0.1.
    """
    return list(core.auto_insert_reshard(*operands))
