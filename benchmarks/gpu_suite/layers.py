"""The layers that are timed, and how much work they are."""

import dataclasses
import math

from oxijax.testing import GPU_BENCHMARK_CASES, DeformConvCase

__all__ = ["DTYPES", "Work", "layers", "set_count", "work"]

DTYPES = {"float16": 2, "bfloat16": 2, "float32": 4}  # bytes; float32 is multiplied as TF32
_SETS_BYTES = 256 * 2**20  # several times the largest L2


@dataclasses.dataclass(frozen=True)
class Work:
    """The least that an operation needs.

    Attributes:
      flops: of its matrix products, of which a backward pass has three.
      bytes: each operand read once, each result written once.
    """

    flops: int
    bytes: int


def layers(dry_run: bool) -> dict[str, DeformConvCase]:
    """The layers by name; in a dry run with fewer channels, and images of a few pixels."""
    if not dry_run:
        return dict(GPU_BENCHMARK_CASES)
    return {
        name: dataclasses.replace(
            case, x=(1, 4, 5, 32), out_channels=32, offset_groups=min(case.offset_groups, 2)
        )
        for name, case in GPU_BENCHMARK_CASES.items()
    }


def work(case: DeformConvCase, operation: str, dtype: str) -> Work:
    """What an operation on a layer has to do."""
    size = DTYPES[dtype]
    taps, pixels = math.prod(case.kernel_size), math.prod(case.y[:3])
    in_group = case.x[3] // case.groups
    product = 2 * pixels * taps * in_group * case.out_channels
    x, y = math.prod(case.x), math.prod(case.y)
    weight = taps * in_group * case.out_channels
    samples = pixels * taps * case.offset_groups
    offsets = samples * (3 if case.mask else 2)  # offset and mask
    bias = case.out_channels if case.bias else 0
    forward = x + offsets + weight + bias + y
    elements = {
        "forward": forward,
        "backward_input": offsets + weight + y + x,
        "backward_offset": x + offsets + weight + y + offsets,
        "backward_weight": x + offsets + y + weight,
        # Forward; then all of it and grad_y are read, and all gradients written.
        "forward_backward": forward + forward + x + offsets + weight + bias,
    }[operation]
    return Work(product * (3 if operation == "forward_backward" else 1), elements * size)


def set_count(case: DeformConvCase, dtype: str, dry_run: bool) -> int:
    """How many sets of operands calls take turns with, so that none is found in the L2."""
    if dry_run:
        return 2
    return max(4, min(16, math.ceil(_SETS_BYTES / work(case, "forward", dtype).bytes)))
