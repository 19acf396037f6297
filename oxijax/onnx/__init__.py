"""ONNX, both ways: models with oxijax's operators are exported, and nodes of them are run."""

from oxijax._core.install import install_command
from oxijax.onnx._deform_conv import deform_conv
from oxijax.onnx._run_node import run_node
from oxijax.onnx._sampling_nodes import grid_sample, roi_align

__all__ = ["deform_conv", "grid_sample", "register", "roi_align", "run_node"]


def register() -> None:
    """Tells jax2onnx how to export the operators of oxijax.

    After it `jax2onnx.to_onnx` takes functions and models that call them:

    | operator                                | what it becomes                                |
    |-----------------------------------------|------------------------------------------------|
    | `oxijax.deform_conv`                    | DeformConv, between transposes                 |
    | `oxijax.conv`                           | Conv, with the bias, between transposes        |
    | `oxijax.gemm`                           | Gemm; MatMul for a batch of products, or where |
    |                                         | alpha or beta is computed by the model         |
    | `oxijax.ms_deform_attn`, `oxijax.dcnv3`,| for each level a GridSample, whose samples are |
    | `oxijax.dcnv4`, `oxijax.grid_sample`    | weighed by Mul and added by ReduceSum          |

    The layers of `oxijax.nnx`, `oxijax.linen` and `oxijax.equinox` are made of these. Models may
    call it any number of times; nothing is registered by an import, so that who only runs nodes
    needs no jax2onnx.

    An export raises, by name:

    * ValueError: an opset in which ONNX has no such operator for the operands' dtype; DeformConv
      is there from opset 19 on, and takes bfloat16 from 22 on, as Conv does.
    * NotImplementedError: a kernel of a gradient, for which ONNX has no operator.

    Raises:
      ImportError: jax2onnx is not installed.

    Source: the operators of ONNX, https://onnx.ai/onnx/operators.
    """
    try:
        from oxijax.onnx import _plugins
    except ImportError as error:
        message = f"oxijax.onnx.register needs jax2onnx: {install_command('onnx')}"
        raise ImportError(message) from error
    _plugins.register()
