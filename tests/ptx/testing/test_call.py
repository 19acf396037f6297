"""Calls of kernels by the names of their operands, and what is asked of the callers."""

import dataclasses
import re

import numpy as np
import pytest

from ptx.definition import In, KernelDefinition, Out, Plan, Size
from ptx.emulator import OutOfBoundsError, UnwrittenError
from ptx.isa.dtypes import DType, bf16, f32
from ptx.testing.call import bytes_stored, launch, numpy_dtype, run


@dataclasses.dataclass(frozen=True)
class Config:
    columns: int = 5
    float_type: DType = f32
    use_bias: bool = False
    use_start: bool = False


def body(k, config, plan, p):
    """y[r, c] = the sum of x[c, r] + bias[c], and what y holds if it has a start."""
    with k.loop(k.tid(), p.count, plan.threads) as index:
        row, column = index // config.columns, index % config.columns
        total = p.x.load(index)
        if config.use_bias:
            total = total + p.bias.load(column)
        place = p.y + (column * p.rows + row)
        place.store(0, total + place.load(0) if config.use_start else total)


KERNEL = KernelDefinition(
    name="transposed",
    configs={"f32": Config()},
    parameters=(
        In("x", "c r", layout="r c"),
        In("bias", "c", flag="use_bias"),
        Out("y", "r c", layout="c r", initial="start", initial_flag="use_start"),
        Size("rows", lambda instance: instance.sizes["r"]),
        Size("count", lambda instance: instance.sizes["r"] * instance.sizes["c"]),
    ),
    known=lambda config: {"c": config.columns},
    body=body,
    grid=lambda instance: (min(1, instance.sizes["r"]), 1, 1),
)
X = np.arange(15, dtype=np.float32).reshape(5, 3)
BIAS = np.arange(5, dtype=np.float32) * 100
START = np.arange(15, dtype=np.float32).reshape(3, 5) * 1000


@pytest.mark.parametrize("use_bias", [False, True])
@pytest.mark.parametrize("use_start", [False, True])
def test_operands_by_name(use_bias, use_start):
    config = Config(use_bias=use_bias, use_start=use_start)
    operands = {"start": START if use_start else None, "x": X, "bias": BIAS if use_bias else None}
    outcome = run(KERNEL, config, "sm_80", operands, schedule=3)
    np.testing.assert_array_equal(
        outcome.results["y"], X.T + (BIAS if use_bias else 0) + (START if use_start else 0)
    )
    assert outcome.report is not None
    assert bytes_stored(KERNEL.write(config, "sm_80").text, outcome.report) == X.nbytes


def test_what_is_replaced():
    """Sizes, the grid, the plan and the text are those that the caller asks for."""
    with pytest.raises(UnwrittenError):
        run(KERNEL, Config(), "sm_80", {"x": X}, values={"count": 14})
    with pytest.raises(TypeError, match="has no size height"):
        run(KERNEL, Config(), "sm_80", {"x": X}, values={"height": 14})
    assert run(KERNEL, Config(), "sm_80", {"x": X}, grid=lambda grid: (0, 1, 1)).report is None
    report = run(KERNEL, Config(), "sm_80", {"x": X}, plan=Plan(threads=32)).report
    assert report is not None
    assert max(report.executed.values()) == 32
    text = KERNEL.write(Config(), "sm_80").text
    without_stores = re.sub(r".* st\.global.*\n", "", text)
    assert without_stores != text
    with pytest.raises(UnwrittenError):
        run(KERNEL, Config(), "sm_80", {"x": X}, text=without_stores)


def test_a_fault_names_the_line_of_python_that_wrote_it():
    def stray(k, config, plan, p):
        p.y.store(p.count, p.x.load(0))  # behind the end

    kernel = dataclasses.replace(KERNEL, name="stray", body=stray)
    with pytest.raises(OutOfBoundsError, match=r"write at byte 60 of argument 1 \(y\)") as caught:
        run(kernel, Config(), "sm_80", {"x": X})
    (note,) = caught.value.__notes__
    assert note == f"  written at {__file__}:{stray.__code__.co_firstlineno + 1}"
    text = kernel.write(Config(), "sm_80").text
    with pytest.raises(OutOfBoundsError) as caught:
        run(kernel, Config(), "sm_80", {"x": X}, text=text)
    assert not hasattr(caught.value, "__notes__")  # of which nothing is known


def test_origin_of_a_line():
    text = KERNEL.write(Config(), "sm_80").text
    lines = [line.strip() for line in text.splitlines()]
    shapes = [(3, 5), (5, 3)]
    store = lines.index(next(line for line in lines if line.startswith("st.global"))) + 1
    origin = KERNEL.origin(Config(), "sm_80", shapes, store)
    assert origin is not None
    assert (origin.file, origin.line) == (__file__, body.__code__.co_firstlineno + 8)
    assert origin.functions[-1] == "ptx.definition._write"  # the innermost that is not of the test
    assert KERNEL.origin(Config(), "sm_80", shapes, 1) is None


def test_nothing_to_launch():
    outcome = run(KERNEL, Config(), "sm_80", {"x": X[:, :0]})
    assert outcome.report is None
    assert outcome.results["y"].shape == (0, 5)


@pytest.mark.parametrize(
    ("operands", "error", "message"),
    [
        ({}, TypeError, "takes x in this configuration"),
        ({"x": X, "bias": BIAS}, TypeError, "was given x, bias"),
        ({"x": X.astype(np.float64)}, TypeError, "x must be float32, got float64"),
        ({"x": X.T}, ValueError, "x must have c = 5"),
    ],
)
def test_wrong_operands(operands, error, message):
    with pytest.raises(error, match=message):
        run(KERNEL, Config(), "sm_80", operands)


def test_a_missing_buffer():
    with pytest.raises(KeyError, match="x"):
        launch(KERNEL, Config(), "sm_80", {})


def test_dtypes():
    assert (numpy_dtype(f32), numpy_dtype(bf16).name) == (np.float32, "bfloat16")
