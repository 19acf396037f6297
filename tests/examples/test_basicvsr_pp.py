"""BasicVSR++ in Flax against PyTorch's with the same weights, and the example that trains one."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from basicvsr_network import BasicVSRPlusPlus, load
from basicvsr_pp import main
from flax import nnx
from moving_frames import REACH, SIZE, UNSEEN, make_frames
from spynet import resize, warp
from support.helpers import assert_close
from support.paths import DATA

import oxijax

SMALL = {
    "mid_channels": 8,
    "num_blocks": 1,
    "outer_blocks": 1,
    "high_channels": 8,
    "offset_groups": 4,
    "max_residue": 3,
    "flow_widths": (4, 8, 4, 4),
}
# Little of what LLVM does pays for one call.
OPTIONS = {"xla_backend_optimization_level": 0}


@pytest.fixture(scope="module")
def recorded() -> dict[str, np.ndarray]:
    """What `tests/recording/basicvsr_pp.py` recorded, by what comes after the case's name."""
    with np.load(DATA / "basicvsr_pp.npz") as file:
        return {key.partition("/small/")[2]: array for key, array in file.items()}


def part(recorded: dict[str, np.ndarray], name: str) -> dict[str, np.ndarray]:
    return {
        key.removeprefix(f"{name}/"): array
        for key, array in recorded.items()
        if key.startswith(f"{name}/")
    }


def empty_network(**changes) -> BasicVSRPlusPlus:
    """A network whose parameters have shapes and no values."""
    return nnx.eval_shape(lambda: BasicVSRPlusPlus(**{**SMALL, **changes}, rngs=nnx.Rngs(0)))


def to_nhwc(array: np.ndarray) -> np.ndarray:
    return np.moveaxis(array, -3, -1)


@pytest.mark.slow
def test_is_pytorch_s_network(recorded):
    """Videos, and the gradients to frames and to a weight of each part."""
    network = load(empty_network(), part(recorded, "state"), prefix="")
    structure, parameters = nnx.split(network)

    def run(parameters, frames, grad_y):
        y, vjp = jax.vjp(lambda p, x: nnx.merge(structure, p)(x), parameters, frames)
        return y, vjp(grad_y)

    frames, grad_y = to_nhwc(recorded["inputs/lqs"]), to_nhwc(recorded["grad_y"])
    y, (grads, grad_frames) = jax.jit(run, compiler_options=OPTIONS)(parameters, frames, grad_y)
    assert_close(y, to_nhwc(recorded["y"]), 1e-5)
    assert_close(grad_frames, to_nhwc(recorded["gradients/lqs"]), 1e-4)
    found = oxijax.convert.to_torch(nnx.merge(structure, grads))
    weights = part(recorded, "gradients").keys() - {"lqs"}
    assert len(weights) == 9
    for name in weights:
        assert_close(found[name], recorded[f"gradients/{name}"], 1e-4, name)


def test_weights_of_another_size(recorded):
    state = {f"generator.{key}": array for key, array in part(recorded, "state").items()}
    load(empty_network(), state)
    with pytest.raises(ValueError, match=r"generator\.backbone\.backward_1\.main\.2\.1\.conv1"):
        load(empty_network(num_blocks=2), state)


@pytest.mark.parametrize(
    ("size", "align_corners", "expected"),
    [
        ((1, 4), True, [[0, 1, 2, 3]]),
        ((1, 8), False, [[0, 0.25, 0.75, 1.25, 1.75, 2.25, 2.75, 3]]),
        ((1, 7), True, [[0, 0.5, 1, 1.5, 2, 2.5, 3]]),
        ((2, 2), False, [[0.5, 2.5]] * 2),
        ((3, 1), True, [[0]] * 3),
    ],
)
def test_resize(size, align_corners, expected):
    image = np.arange(4, dtype=np.float32)[None, None, :, None]
    found = resize(jnp.asarray(image), size, align_corners)
    np.testing.assert_allclose(found[0, ..., 0], expected, atol=1e-6)


def test_warp():
    image = jnp.arange(12.0).reshape(1, 3, 4, 1)
    flow = jnp.tile(jnp.array([1.5, -1]), (1, 3, 4, 1))  # right, and up
    expected = [[0, 0, 0, 0], [1.5, 2.5, 1.5, 0], [5.5, 6.5, 3.5, 0]]
    np.testing.assert_allclose(warp(image, flow)[0, ..., 0], expected, atol=1e-5)
    expected = [[1.5, 2.5, 3, 3], [1.5, 2.5, 3, 3], [5.5, 6.5, 7, 7]]
    np.testing.assert_allclose(warp(image, flow, "border")[0, ..., 0], expected, atol=1e-5)


def test_frames_of_a_moving_camera():
    """Each is a part of the photograph, at most so many pixels from the one before."""
    rows, columns = np.mgrid[:427, :640]
    photograph = jnp.asarray(np.stack([rows, columns, rows], axis=-1), jnp.float32)
    for unseen in (False, True):
        frames = make_frames(photograph, jax.random.key(0), 40, unseen)
        corners = np.stack([frame[:, 0, 0, :2] for frame in frames])
        assert np.abs(np.diff(corners, axis=0)).max() == REACH
        for frame, corner in zip(frames, corners, strict=True):
            assert frame.shape == (40, SIZE, SIZE, 3)
            np.testing.assert_array_equal(frame[:, -1, -1, :2], corner + SIZE - 1)
        lefts, rights = corners[..., 1], corners[..., 1] + SIZE - 1
        inside = (lefts >= UNSEEN[0]) & (rights < UNSEEN[1])
        beside = (rights < UNSEEN[0]) | (lefts >= UNSEEN[1])
        assert np.all(inside if unseen else beside)


@pytest.mark.spread(1)
def test_an_alignment_is_trained_and_drawn(tmp_path, capsys):
    picture, file = tmp_path / "aligned.png", tmp_path / "figures.json"
    options = ["--seconds", "0.5", "--batch", "1", "--frames", "2"]
    figures = main([*options, "--picture", str(picture), "--json", str(file)])
    printed = capsys.readouterr().out
    assert json.loads(file.read_text()) == figures
    assert figures["steps"] >= 1
    assert np.isfinite(figures["loss"])
    for name, value in figures["psnr_db"].items():
        assert f"{name}: {value:.2f}" in printed
        assert 3 < value < 60
    assert picture.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert picture.stat().st_size > 20_000
