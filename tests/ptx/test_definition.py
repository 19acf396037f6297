"""Mistakes in a kernel's definition raise at once, by name."""

import dataclasses
import re
from typing import Any

import numpy as np
import pytest

from ptx.definition import In, KernelDefinition, Out, Plan, Size
from ptx.isa.dtypes import DType, f32
from ptx.testing.call import run


@dataclasses.dataclass(frozen=True)
class Config:
    float_type: DType = f32


def body(k, config, plan, p):
    """y[r, c] = x[r], for as many columns as y has."""
    index = k.ctaid() * plan.threads + k.tid()
    with k.if_(index < p.count):
        p.y.store(index, p.x.load(index // p.columns))


def definition(**changes: Any) -> KernelDefinition:
    parts: dict[str, Any] = {
        "name": "spread",
        "configs": {"f32": Config()},
        "parameters": (
            In("x", "r"),
            Out("y", "r c"),
            Size("columns", lambda instance: instance.sizes["c"]),
            Size("count", lambda instance: instance.sizes["r"] * instance.sizes["c"]),
        ),
        "body": body,
        "grid": lambda instance: (-(-instance.sizes["r"] * instance.sizes["c"] // 128), 1, 1),
    }
    return KernelDefinition(**parts | changes)


X = np.arange(3, dtype=np.float32)


def test_the_definition_itself_runs():
    y = run(definition(), Config(), "sm_80", {"x": X}, {"c": 2}).results["y"]
    np.testing.assert_array_equal(y, np.repeat(X[:, None], 2, 1))


def replaced(*parameters: Any) -> tuple[Any, ...]:
    return (In("x", "r"), Out("y", "r c"), *parameters)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"parameters": ("x",)}, TypeError, "must be In, Out or Size, got 'x'"),
        ({"parameters": replaced(In("x", "r"))}, ValueError, "differ in name, got ['x', 'y', 'x']"),
        ({"configs": {}}, ValueError, "at least one configuration"),
        ({"needs": "sm_1"}, ValueError, "must be a target, got 'sm_1'"),
        ({"launch_sizes": {"f64": {"r": 4}}}, ValueError, "no configuration for ['f64']"),
    ],
)
def test_what_it_consists_of(changes, error, message):
    with pytest.raises(error, match=re.escape(message)) as caught:
        definition(**changes)
    assert "kernel 'spread'" in str(caught.value)


def returns(value: Any):
    return lambda *arguments: value


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"plan": returns(None)}, TypeError, "a plan must have threads, an int, and min_blocks"),
        (
            {"plan": returns(128)},
            TypeError,
            "for example ptx.definition.Plan(threads=128), got 128",
        ),
        ({"plan": returns(Plan((32, 8)))}, TypeError, "got Plan(threads=(32, 8)"),  # pyright: ignore[reportArgumentType]
        ({"plan": returns(Plan(2048))}, ValueError, "threads must be 1 to 1024, got Plan("),
        ({"plan": returns(Plan(128, 0))}, TypeError, "min_blocks must be a positive int or None"),
        ({"grid": returns(4)}, TypeError, "a grid must be the ints (x, y, z)"),
        ({"grid": returns((4, 1))}, TypeError, "for example (blocks, 1, 1), got (4, 1)"),
        ({"grid": returns((4.0, 1, 1))}, TypeError, "got (4.0, 1, 1)"),
        ({"grid": returns((-1, 1, 1))}, ValueError, "the grid would have -1 blocks in x"),
        ({"grid": returns((1, 70000, 1))}, ValueError, "70000 blocks in y, and a launch takes"),
        ({"body": returns(128)}, TypeError, "body must return None, or a text in place"),
        (
            {"grid": lambda instance: (instance.sizes["rows"], 1, 1)},
            KeyError,
            "has no dimension 'rows': it has r, c",
        ),
        (
            {"grid": lambda instance: instance.shapes["z"]},
            KeyError,
            "has no array 'z': it has x, y",
        ),
        (
            {"parameters": replaced(Size("count", returns(6.0)), Size("columns", returns(2)))},
            TypeError,
            "count must be an int, got 6.0",
        ),
        (
            {"parameters": replaced(Size("count", returns(-6)), Size("columns", returns(2)))},
            ValueError,
            "count is -6, no u32",
        ),
        (
            {"body": lambda k, config, plan, p: p.z.load(0)},
            AttributeError,
            "the kernel has no parameter 'z': it has x, y, columns, count",
        ),
    ],
)
def test_what_its_functions_return(changes, error, message):
    with pytest.raises(error, match=re.escape(message)):
        run(definition(**changes), Config(), "sm_80", {"x": X}, {"c": 2})


def test_a_size_that_no_operand_has():
    expected = "kernel spread: sizes must have c, of y ['r', 'c'], got {'r': 3}"
    with pytest.raises(ValueError, match=re.escape(expected)):
        run(definition(), Config(), "sm_80", {"x": X})


def test_a_plan_that_is_given():
    with pytest.raises(TypeError, match="a plan must have threads, an int"):
        definition().write(Config(), "sm_80", plan=64)  # pyright: ignore[reportArgumentType]
