"""Models exported by jax2onnx, checked and run."""

import collections
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax2onnx
import numpy as np
import onnx
import onnxruntime

import oxijax

__all__ = ["exported", "operators", "run"]


def exported(
    function: Callable, inputs: Sequence[Any], *, opset: int = 22, **options: Any
) -> onnx.ModelProto:
    """The model of a function, which ONNX's checker has passed.

    Args:
      function: the function of arrays.
      inputs: a shape for each of its arguments, where strings are symbolic sizes; or a
        `jax.ShapeDtypeStruct`.
      opset: the model's opset.
      options: further arguments of `jax2onnx.to_onnx`.
    """
    oxijax.onnx.register()
    model = jax2onnx.to_onnx(function, inputs, opset=opset, **options)
    onnx.checker.check_model(model, full_check=True)
    assert {entry.domain: entry.version for entry in model.opset_import}[""] == opset
    return model


def operators(model: onnx.ModelProto) -> Mapping[str, int]:
    """How many nodes of each operator a model has."""
    return collections.Counter(node.op_type for node in model.graph.node)


def run(model: onnx.ModelProto, *arrays: np.ndarray) -> np.ndarray:
    """The one output of a model, by ONNX Runtime on a CPU."""
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    names = [value.name for value in session.get_inputs()]
    (y,) = session.run(None, dict(zip(names, arrays, strict=True)))
    return np.asarray(y)
