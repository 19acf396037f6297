"""The Python of docs/onnx.md runs as written, and its table has what is registered."""

import re

import pytest
from onnx import defs
from support.paths import DOCS

PAGE = (DOCS / "onnx.md").read_text()


# What jax2onnx has in the place of Flax's own layers reads variables as older versions of Flax do.
@pytest.mark.filterwarnings("ignore:'.value' access is now deprecated:DeprecationWarning")
def test_the_page():
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE, re.M | re.S)
    assert len(blocks) == 2
    namespace = {}
    for block in blocks:
        exec(block, namespace)
    assert namespace["y"].shape == (1, 6, 4, 4)


def test_opsets():
    """The table's first opsets are those of ONNX's schemas."""
    for operator, since in re.findall(r"\| (DeformConv|GridSample)\b[^|]*\| (\d+)", PAGE):
        assert defs.get_schema(operator, int(since)).since_version == int(since)
        with pytest.raises(defs.SchemaError):
            defs.get_schema(operator, int(since) - 1)
    for operator in ("DeformConv", "Conv"):
        assert "tensor(bfloat16)" in defs.get_schema(operator, 22).inputs[0].types
        assert "tensor(bfloat16)" not in defs.get_schema(operator, 21).inputs[0].types
