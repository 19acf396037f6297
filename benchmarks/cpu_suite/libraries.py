"""Programs of PyTorch, OpenVINO and ONNX Runtime, of any operator."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnxruntime
import openvino  # pyright: ignore[reportMissingImports]
import torch  # pyright: ignore[reportMissingImports]
from onnx import TensorProto, helper
from openvino import opset8  # pyright: ignore[reportMissingImports]

from cpu_suite.program import Array, Program, Run
from oxijax._cli.bench_rounds import core_count

__all__ = ["of_onnxruntime", "of_openvino", "of_torch"]

_THREADS = core_count()
torch.set_num_threads(_THREADS)


def of_torch(function: Run, arrays: tuple[Array, ...], result: Callable, grad_y: Any) -> Program:
    """A program of PyTorch; gradients are to all operands."""
    tensors = [None if a is None else torch.from_numpy(a).requires_grad_() for a in arrays]

    def forward(*operands: Any) -> Any:
        with torch.no_grad():
            return function(*operands)

    def backward(grad_y: Any, *operands: Any) -> Any:
        y = function(*operands)
        return y, torch.autograd.grad(y, [o for o in operands if o is not None], grad_y)

    return Program(
        forward, tuple(tensors), lambda y: result(y.numpy()), backward, torch.from_numpy(grad_y)
    )


def of_openvino(make: Callable[..., Any], arrays: tuple[Array, ...], result: Callable) -> Program:
    """A program of OpenVINO, whose operation `make` makes of its parameters."""
    present = [a for a in arrays if a is not None]
    parameters = [opset8.parameter(a.shape, np.float32) for a in present]
    hints = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": _THREADS}
    model = openvino.Model([make(*parameters)], parameters)
    request = openvino.compile_model(model, "CPU", hints).create_infer_request()
    for index, array in enumerate(present):
        request.set_input_tensor(index, openvino.Tensor(array, shared_memory=True))

    def run() -> np.ndarray:
        request.infer()
        return request.get_output_tensor(0).data

    return Program(run, (), lambda y: result(np.array(y)))


def of_onnxruntime(
    operation: str, arrays: Mapping[str, Array], result: Callable, **attributes: Any
) -> Program:
    """A program of ONNX Runtime, of one node."""
    given = {name: array for name, array in arrays.items() if array is not None}
    node = helper.make_node(
        operation, [name if name in given else "" for name in arrays], ["y"], **attributes
    )
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, array.shape)
        for name, array in given.items()
    ]
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    model = helper.make_model(
        helper.make_graph([node], operation, inputs, [output]),
        opset_imports=[helper.make_opsetid("", 20)], ir_version=10,
    )  # fmt: skip
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = _THREADS
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return Program(lambda feeds: session.run(None, feeds)[0], (given,), result)
