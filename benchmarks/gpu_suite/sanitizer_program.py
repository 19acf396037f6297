"""Small layers on GPU 0, one kernel at a time: what compute-sanitizer watches.

    python -m gpu_suite.sanitizer_program {layers,strange,conv,gemm,sampling,...} [--emulate]

Prints a line for each comparison, and at the end how many kernels ran. The last two programs are
wrong on purpose. With --emulate the kernels run in the emulator, and those of fewer layers.
"""

import argparse
import contextlib
import dataclasses
import functools
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

import oxijax
from gpu_suite.device_launch import device_launches
from oxijax._core.launch import _emulation, call
from oxijax._core.primitive.kernel_primitive import Fold, KernelPrimitive, Result
from oxijax.testing import CASES, CONV_CASES, ConvCase, DeformConvCase, GemmCase, emulate_gpu
from ptx import Kernel, f32
from ptx.definition import In, KernelDefinition, Out, Plan
from ptx.launch import entry_name
from ptx.registry import register

# (case, dtype, precision, tolerance): each dtype's way to multiply, and each shape of tile edges.
_LAYERS = [
    (CASES["groups-and-offset-groups"], "float32", "highest", 2e-6),
    (CASES["strided"], "float32", None, 1e-3),
    (CASES["even-kernel"], "float64", None, 1e-13),
    (CASES["offset-group-a-channel"], "bfloat16", None, 8e-3),
    (DeformConvCase("watched-32", (1, 9, 10, 32), 32), "float16", None, 1e-3),
    (DeformConvCase("watched-64", (1, 5, 9, 64), 72, mask=False), "bfloat16", None, 8e-3),
]
_CONV = [
    (CONV_CASES["strides-2-odd"], "float32", "highest", 2e-6),
    (CONV_CASES["wide"], "bfloat16", None, 8e-3),
    (CONV_CASES["groups-3-strided"], "float32", None, 1e-3),
    (CONV_CASES["padding-uneven"], "float64", None, 1e-13),
    (CONV_CASES["depthwise-strided"], "float16", None, 1e-3),
    (CONV_CASES["kernel-7x7-stem"], "bfloat16", None, 8e-3),
    # Enough pixels for the largest tiles.
    (ConvCase("watched-large", (1, 130, 131, 64), 128, (1, 1)), "bfloat16", None, 8e-3),
]
_FACTORS: dict[str, Any] = {"batch_c": (), "alpha": 0.75, "beta": -1.5}
_TRANSPOSED: dict[str, Any] = {"transpose_a": True, "transpose_b": True}
# Of each strategy, sizes that vectors divide and sizes that they do not, in every dtype.
_GEMM = [
    (GemmCase("shallow", 261, 24, 31, strategy="shallow_k", **_FACTORS), "bfloat16", None, 8e-3),
    (
        GemmCase("split", 70, 24, 1100, strategy="warp_parallel", **_FACTORS, **_TRANSPOSED),
        *("float32", None, 1e-3),
    ),
    (
        GemmCase("persistent", 264, 40, 96, strategy="cache_persistent", **_FACTORS),
        *("float16", None, 1e-3),
    ),
    (
        GemmCase("shallow-wide", 24, 272, 32, strategy="shallow_k", **_TRANSPOSED),
        *("float32", "highest", 2e-6),
    ),
    (
        GemmCase("persistent-wide", 23, 261, 95, strategy="cache_persistent", **_TRANSPOSED),
        *("float64", None, 1e-13),
    ),
    (GemmCase("split-wide", 15, 131, 1031, strategy="warp_parallel"), "bfloat16", None, 8e-3),
    (GemmCase("batch", 70, 9, 16, (3,), (3,), alpha=2.0), "float32", None, 1e-3),
]


@dataclasses.dataclass(frozen=True)
class _SamplingCase:
    """A call of a sampling operator.

    Attributes:
      name: what it is called.
      function: the operator.
      shapes: of its operands: images, points, and weights where they are apart.
      y: the shape of the result.
      options: keyword arguments.
    """

    name: str
    function: str
    shapes: tuple[tuple[int, ...], ...]
    y: tuple[int, ...]
    options: dict[str, Any]

    def operands(self) -> list[np.ndarray]:
        """Images of normal values; coordinates within and around the image; weights."""
        random = np.random.default_rng(0)
        image, points, *weights = self.shapes
        low, high = (-0.2, 1.2) if self.function == "ms_deform_attn" else (-1.4, 1.4)
        return [
            random.standard_normal(image),
            random.uniform(low, high, points),
            *(random.uniform(0.1, 1.0, shape) for shape in weights),
        ]

    def grad_y(self) -> np.ndarray:
        return np.random.default_rng(1).standard_normal(self.y)


_LEVELS = ((5, 7), (3, 4))
_SAMPLING = [
    (
        _SamplingCase(
            "attention", "ms_deform_attn",
            ((2, 47, 2, 32), (2, 9, 2, 2, 4, 2), (2, 9, 2, 2, 4)), (2, 9, 2, 32),
            {"spatial_shapes": _LEVELS, "normalize": True},
        ), "float32", 2e-6,
    ),
    (
        _SamplingCase(
            "window", "dcnv3", ((1, 6, 7, 48), (1, 6, 7, 54), (1, 6, 7, 27)), (1, 6, 7, 48),
            {"kernel_size": 3, "groups": 3, "softmax": True},
        ), "bfloat16", 8e-3,
    ),
    (
        _SamplingCase(
            "packed", "dcnv4", ((1, 6, 7, 32), (1, 6, 7, 56)), (1, 6, 7, 32),
            {"kernel_size": 3, "groups": 2},
        ), "float16", 1e-3,
    ),
    (
        _SamplingCase(
            "grid", "grid_sample", ((2, 5, 6, 3), (2, 4, 8, 2)), (2, 4, 8, 3),
            {"padding_mode": "reflection"},
        ), "float64", 1e-13,
    ),
]  # fmt: skip
_FUNCTIONS = {DeformConvCase: "deform_conv", ConvCase: "conv", GemmCase: "gemm"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program", choices=_PROGRAMS)
    parser.add_argument("--emulate", action="store_true")
    args = parser.parse_args()
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_enable_x64", True)
    with _emulated_launches() if args.emulate else device_launches() as ran:
        _PROGRAMS[args.program](args.emulate)
    print(f"{len(ran)} kernels ran: {', '.join(sorted(set(ran)))}")
    return 0 if ran else 1


@contextlib.contextmanager
def _emulated_launches() -> Iterator[list[str]]:
    """As `device_launches`, in the emulator."""
    ran: list[str] = []
    emulate = _emulation._Loaded.run

    def run(self, *arguments):
        emulate(self, *arguments)
        ran.append(entry_name(self.text))

    with mock.patch.object(_emulation._Loaded, "run", run), emulate_gpu("sm_90"):
        yield ran


def _layers(few: bool) -> None:
    for case, *precision in _LAYERS[:2] if few else _LAYERS:
        _compare(case.name, case, case.operands(), *precision)


def _conv(few: bool) -> None:
    for case, *precision in _CONV[:2] if few else _CONV:
        _compare(case.name, case, case.operands(), *precision)


def _gemm(few: bool) -> None:
    for case, *precision in _GEMM[:2] if few else _GEMM:
        _compare(case.name, case, case.operands().values(), *precision)


def _sampling(few: bool) -> None:
    for case, dtype, tolerance in _SAMPLING[:2] if few else _SAMPLING:
        _compare(case.name, case, case.operands(), dtype, None, tolerance)


def _strange(few: bool) -> None:
    """NaN, infinite and far offsets among ordinary ones, in every kernel."""
    case = DeformConvCase("strange", (1, 6, 7, 32), 24, offset_groups=2)
    for dtype, tolerance in (("float16", 1e-3), ("float32", 1e-3)):
        x, offset, weight, mask, bias = case.operands()
        flat = offset.reshape(-1)
        for i, value in enumerate((np.nan, np.inf, -np.inf, 1e30, -1e30, 2.0**31, 1e9, -1e4, 8.0)):
            flat[101 * i :: 997] = value
        _compare("strange offsets", case, (x, offset, weight, mask, bias), dtype, None, tolerance)


def _compare(
    name: str,
    case: DeformConvCase | ConvCase | GemmCase | _SamplingCase,
    operands: Iterable[np.ndarray | None],
    dtype: str,
    precision: str | None,
    tolerance: float,
) -> None:
    """Raises AssertionError where values or gradients are not the reference's."""
    function, options = case.function if isinstance(case, _SamplingCase) else "", case.options
    if not function:
        function, options = _FUNCTIONS[type(case)], {**options, "precision": precision}
    with np.errstate(over="ignore"):
        arrays = [None if a is None else np.asarray(a, jnp.dtype(dtype)) for a in operands]
    grad_y = np.asarray(case.grad_y(), jnp.dtype(dtype))

    def results(function: Callable, arrays, grad_y):
        function = functools.partial(function, **options)

        @jax.jit
        def run(arrays, grad_y):
            y, vjp = jax.vjp(function, *arrays)
            return y, vjp(grad_y)

        return jax.tree.map(np.asarray, run(arrays, grad_y))

    found = results(getattr(oxijax, function), arrays, grad_y)
    wide = [None if a is None else a.astype(np.float64) for a in arrays]
    reference = getattr(oxijax.reference, function)
    expected = results(reference, wide, grad_y.astype(np.float64))
    worst = 0.0
    leaves = zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True)
    for i, (actual, right) in enumerate(leaves):
        actual = actual.astype(np.float64)
        assert np.array_equal(np.isnan(actual), np.isnan(right)), f"{name}: NaNs of result {i}"
        actual, right = np.nan_to_num(actual), np.nan_to_num(right)
        error = float(np.linalg.norm(actual - right) / (np.linalg.norm(right) or 1))
        assert error <= tolerance, f"{name}, {dtype}: result {i} is wrong by {error:.3g}"
        worst = max(worst, error)
    print(f"{name}, {dtype}: worst relative error {worst:.3g}", flush=True)


@dataclasses.dataclass(frozen=True)
class _Canary:
    """A kernel of one block that is wrong on purpose."""

    threads: int = 64


def _out_of_bounds(k: Kernel, config: _Canary, plan: Plan, p: Any) -> None:
    """Reads one element beyond the end of x."""
    p.y.store(k.tid(), p.x.load(k.tid() + 1))


def _race(k: Kernel, config: _Canary, plan: Plan, p: Any) -> None:
    """Reads what the other warp writes, without a barrier between them."""
    shared = k.shared("segment", f32, config.threads)
    shared.store(k.tid(), p.x.load(k.tid()))
    p.y.store(k.tid(), shared.load(config.threads - 1 - k.tid()))


def _canary(name: str, body: Callable[[Kernel, _Canary, Plan, Any], None]) -> None:
    config = _Canary()
    kernel = register(
        KernelDefinition(
            name=name,
            configs={"default": config},
            parameters=(In("x", "n", dtype=f32), Out("y", "n", dtype=f32)),
            plan=lambda config, target, sizes: Plan(config.threads),
            grid=lambda instance: (1, 1, 1),
            body=body,
        )
    )
    primitive = KernelPrimitive(
        name,
        operands={"x": "n"},
        results={"y": Result("n", like="x")},
        sizes=lambda config, sizes: sizes,
        folds=[Fold("n")],
        reference=lambda config, x: (x,),
        cuda=lambda config, x: call(kernel, config, x=x),
    )
    x = jnp.ones(config.threads, np.float32)
    jax.block_until_ready(jax.jit(lambda x: primitive(config, x))(x))


_PROGRAMS: dict[str, Callable[[bool], None]] = {
    "layers": _layers,
    "strange": _strange,
    "conv": _conv,
    "gemm": _gemm,
    "sampling": _sampling,
    "out-of-bounds": lambda few: _canary("canary_out_of_bounds", _out_of_bounds),
    "race": lambda few: _canary("canary_race", _race),
}

if __name__ == "__main__":
    sys.exit(main())
