"""GridSample and RoiAlign nodes: ONNX's own cases, and what is wrong with a node."""

import functools

import jax
import numpy as np
import onnx
import pytest
from onnx.backend.test.case.node import gridsample, roialign
from support.helpers import assert_close

import oxijax


def cases() -> dict[str, tuple[onnx.NodeProto, dict[str, np.ndarray], np.ndarray]]:
    """ONNX's cases of both nodes: the node, its inputs by name, and its output."""
    found = {}

    def keep(node, inputs, outputs, name, **_):
        found[name.removeprefix("test_")] = (
            node,
            dict(zip(node.input, inputs, strict=True)),
            *outputs,
        )

    with pytest.MonkeyPatch.context() as patch:
        for module, operator in ((gridsample, "GridSample"), (roialign, "RoiAlign")):
            patch.setattr(module, "expect", keep)
            for name, export in vars(getattr(module, operator)).items():
                if name.startswith("export"):
                    export.__func__()
    return found


CASES = cases()
MAXIMA = {"roialign_mode_max"}  # oxijax has means alone


def test_the_cases_are_there():
    assert sum(name.startswith("gridsample") for name in CASES) >= 18
    assert CASES.keys() > MAXIMA


@pytest.mark.spread(3)
@pytest.mark.parametrize("name", [name for name in CASES if name not in MAXIMA])
def test_case(name):
    node, inputs, expected = CASES[name]
    y = oxijax.onnx.run_node(node, inputs)
    assert y.dtype == expected.dtype
    # ONNX has four decimals, of RoiAlign's images too.
    atol = 1e-4 if node.op_type == "RoiAlign" else 6e-5
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=atol)


@pytest.mark.parametrize("mode", ["linear", "nearest"])
def test_lines(mode):
    """A line is an image of one row."""
    random = np.random.default_rng(0)
    x, grid = random.standard_normal((2, 3, 7)), random.uniform(-1.2, 1.2, (2, 5, 1))
    sample = functools.partial(oxijax.onnx.grid_sample, mode=mode, align_corners=1)
    rows = sample(x[:, :, None], np.concatenate([grid, np.zeros_like(grid)], -1)[:, None])
    assert_close(sample(x, grid), rows[:, :, 0], 1e-6)


def test_gradients():
    node, inputs, _ = CASES["roialign_aligned_true"]
    scale = jax.grad(lambda x: oxijax.onnx.run_node(node, {**inputs, "X": x}).sum())(inputs["X"])
    # A mean of samples inside of the image: each bin of each box and channel has the sum 1.
    _, channels, *_ = inputs["X"].shape
    assert float(scale.sum()) == pytest.approx(len(inputs["rois"]) * channels * 25, rel=1e-5)


X = np.ones((1, 2, 4, 5), np.float32)
GRID = np.zeros((1, 3, 3, 2), np.float32)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"mode": "trilinear"}, ValueError, "mode must be one of 'linear', 'bilinear', 'nearest'"),
        ({"padding_mode": "wrap"}, ValueError, "padding_mode must be 'zeros', 'border' or"),
        ({"align_corners": 2}, ValueError, "align_corners must be 0 or 1, got 2"),
        ({"grid": GRID[..., :1]}, ValueError, "grid must have shape"),
        ({"X": X[0, 0]}, ValueError, "X must have 3, 4 or 5 dimensions"),
        ({"X": X.astype(np.int32)}, TypeError, "X must"),
    ],
)
def test_wrong_grid_samples(changes, error, message):
    with pytest.raises(error, match=message):
        oxijax.onnx.grid_sample(**{"X": X, "grid": GRID, **changes})


def test_volumes_have_no_cubic():
    with pytest.raises(ValueError, match="mode must be one of 'linear', 'bilinear', 'nearest' for"):
        oxijax.onnx.grid_sample(X[:, :, None], np.zeros((1, 1, 1, 1, 3)), mode="cubic")


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"mode": "max"}, ValueError, "mode must be 'avg'"),
        ({"coordinate_transformation_mode": "half"}, ValueError, "coordinate_transformation_mode"),
        (
            {"batch_indices": np.zeros(2, np.float32)},
            TypeError,
            "batch_indices must be of",
        ),
        ({"batch_indices": np.zeros(3, np.int64)}, ValueError, "batch_indices must have shape"),
        ({"rois": np.ones((2, 5), np.float32)}, ValueError, "rois must have shape"),
        ({"output_width": 1.5}, TypeError, "output_width must be"),
    ],
)
def test_wrong_roi_aligns(changes, error, message):
    right = {"X": X, "rois": np.ones((2, 4), np.float32), "batch_indices": np.zeros(2, np.int64)}
    with pytest.raises(error, match=message):
        oxijax.onnx.roi_align(**{**right, **changes})
