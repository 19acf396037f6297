"""Cases of other projects' suites for ONNX's DeformConv: inputs, attributes, expected outputs."""

import dataclasses
import functools
import json
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from support.paths import DATA

__all__ = ["CASES", "NodeCase"]


@dataclasses.dataclass(frozen=True)
class NodeCase:
    """A node, and what a runtime has to make of it.

    Attributes:
      suite: the suite that it is from.
      dtype: the dtype of inputs and output.
      opset: the node's opset.
      attributes: the node's attributes.
      inputs: the arrays, by ONNX's names.
      expected: the output; None where a runtime has to refuse the inputs.
      wrong: the name of the input that does not fit then.
    """

    suite: str
    dtype: str
    opset: int
    attributes: Mapping[str, Any]
    inputs: Mapping[str, np.ndarray]
    expected: np.ndarray | None
    wrong: str


def _read() -> dict[str, NodeCase]:
    recorded = json.loads((DATA / "deform_conv_onnx.json").read_text())["cases"]
    return {case["name"]: _case(case) for case in recorded}


def _case(case: dict[str, Any]) -> NodeCase:
    array = functools.partial(_array, case["dtype"])
    return NodeCase(
        case["suite"],
        case["dtype"],
        case["opset"],
        case["attributes"],
        {name: array(value) for name, value in case["inputs"].items()},
        array(case["Y"]) if "Y" in case else None,
        case.get("error", ""),
    )


def _array(dtype: str, recorded: dict[str, Any]) -> np.ndarray:
    """An array of a shape: of all its values in order, or of the one that fills it."""
    shape, dtype_ = tuple(recorded["shape"]), jnp.dtype(dtype)
    if "fill" in recorded:
        return np.full(shape, recorded["fill"], dtype_)
    return np.asarray(recorded["values"], dtype_).reshape(shape)


CASES = _read()
