"""The demo: the command, what it trains on, and whether its picture tells the truth."""

import sys

import jax
import jax.numpy as jnp
import matplotlib.image
import numpy as np
import pytest
from flax import nnx
from support.processes import python

import oxijax._cli
from oxijax.__main__ import main
from oxijax._cli import demo_picture, demo_training
from oxijax._cli.demo_training import CANVAS, Classifier, Digits
from oxijax.nnx import DeformConv

LAYERS = (2, 3)  # those that may be deformable


@pytest.fixture(scope="module")
def digits() -> Digits:
    return Digits.split(0)


def new_network(deformable: bool) -> Classifier:
    network = Classifier(deformable=deformable, rngs=nnx.Rngs(0))
    network.eval()
    return network


@pytest.mark.spread(1)
def test_command(tmp_path, capsys):
    picture = tmp_path / "picture.png"
    assert main(["demo", "--seeds", "1", "--steps", "2", "--output", str(picture)]) == 0
    height, width, _ = matplotlib.image.imread(picture).shape
    assert height > 500
    assert width > 500

    printed = capsys.readouterr().out
    header, accuracies, parameters = (
        next(line for line in printed.splitlines() if word in line)
        for word in ("plain ┃ deformable", "│ seed 0", "parameters")
    )
    assert header.count("┃") == 4
    assert accuracies.count("%") == 2
    for deformable in (False, True):
        count = demo_training.parameter_count(new_network(deformable))
        assert f" {count:,} " in parameters
    assert str(picture) in printed
    assert len(printed.splitlines()) < 30  # no trace of a progress bar


@pytest.mark.spread(1)
@pytest.mark.parametrize("deformable", [False, True], ids=["plain", "deformable"])
def test_training_lowers_the_loss(digits, deformable):
    seen = []
    network, losses = demo_training.train(
        digits, deformable=deformable, steps=60, seed=0, on_step=seen.append
    )
    np.testing.assert_array_equal(losses, seen)
    assert losses[0] == pytest.approx(np.log(10), rel=0.1)
    assert losses[-5:].mean() < 0.9 * losses[:5].mean()
    assert demo_training.accuracy(network, digits) > 0.15
    for convolution in network.convolutions:
        if isinstance(convolution, DeformConv):
            assert np.any(convolution.offset_conv.kernel[...])


@pytest.mark.parametrize("seed", [0, 1])
def test_held_out_digits_are_other_digits(seed):
    digits = Digits.split(seed)
    assert not set(digits.indices) & set(digits.held_out_indices)
    assert len(set(digits.indices)) + len(set(digits.held_out_indices)) == 1797
    share, held_out_share = (
        np.bincount(labels) / len(labels) for labels in (digits.labels, digits.held_out_labels)
    )
    np.testing.assert_allclose(share, held_out_share, atol=0.002)


def test_a_seed_fixes_the_held_out_canvases(digits):
    again, other = Digits.split(0), Digits.split(1)
    np.testing.assert_array_equal(again.held_out_images, digits.held_out_images)
    assert np.any(np.asarray(other.held_out_indices) != digits.held_out_indices)


def test_place_keeps_the_digit_on_the_canvas():
    blot = jnp.zeros((20, 8, 8)).at[:, 3:5, 3:5].set(1.0)
    canvases = np.asarray(demo_training.place(blot, jax.random.key(0)))
    assert canvases.shape == (20, CANVAS, CANVAS, 1)
    areas = canvases.sum(axis=(1, 2, 3))
    low, high = 4 * 1.25**2, 4 * 3.5**2
    assert np.all((areas > 0.8 * low) & (areas < 1.2 * high))
    assert areas.max() > 2 * areas.min()


def test_twins_start_alike(digits):
    images = digits.held_out_images[:8]
    plain, deformable = (new_network(kind)(images) for kind in (False, True))
    np.testing.assert_allclose(plain, deformable, atol=1e-6)


@pytest.mark.spread(1)
def test_predictors_of_offsets_learn_at_a_tenth_of_the_rate():
    params = nnx.state(new_network(True), nnx.Param)
    rule = demo_training._gradient_rule(10)
    updates, _ = rule.update(jax.tree.map(jnp.ones_like, params), rule.init(params), params)
    # Each rate of Adam's first step, whatever the gradient, but for the decay of the weights.
    rates = {
        jax.tree_util.keystr(path): float(jnp.mean(update))
        for path, update in jax.tree_util.tree_leaves_with_path(updates)
        if "bias" in jax.tree_util.keystr(path)
    }
    assert sum("offset_conv" in name for name in rates) == 2
    for name, rate in rates.items():
        assert rate == pytest.approx(-1e-4 if "offset_conv" in name else -1e-3, rel=0.01), name


@pytest.mark.parametrize("layer", LAYERS)
def test_zero_offsets_sample_the_plain_grid(digits, layer):
    canvases = digits.held_out_images[:3]
    plain, deformable = (
        demo_picture.sample(new_network(kind), canvases, layer) for kind in (False, True)
    )
    np.testing.assert_array_equal(deformable.points, plain.points)
    np.testing.assert_array_equal(deformable.centers, plain.centers)
    np.testing.assert_array_equal(deformable.modulation, 1)
    assert plain.points.shape == (3, 8, 8, 9, 2)
    steps = np.diff(plain.points[0, 4, 4].reshape(3, 3, 2)[:, :, 0], axis=0)
    np.testing.assert_array_equal(steps, 4)  # the strides before are 2 and 2


@pytest.mark.spread(1)
@pytest.mark.parametrize("tap", [0, 5, 8])
def test_points_are_where_the_network_reads(tap):
    """The middle of what one tap of the last layer reads, by differentiation, is its point."""
    network = new_network(True)
    for convolution in network.convolutions:
        convolution.kernel[...] = jnp.ones_like(convolution.kernel[...])
    last = network.convolutions[3]
    assert isinstance(last, DeformConv)
    last.kernel[...] = jnp.zeros_like(last.kernel[...]).at[tap // 3, tap % 3].set(1)
    offsets = jax.random.uniform(jax.random.key(0), (18,), minval=-0.9, maxval=0.9)
    assert last.offset_conv.bias is not None
    last.offset_conv.bias[...] = jnp.concatenate([offsets, jnp.linspace(-1, 1, 9)])
    canvas = jnp.ones((1, CANVAS, CANVAS, 1))

    def output(canvas):
        for convolution in network.convolutions:
            canvas = convolution(canvas)
        return canvas[0, 3, 3, 0]

    read = np.asarray(jax.grad(output)(canvas))[0, ..., 0]
    middle = (np.indices(read.shape) * read).sum(axis=(1, 2)) / read.sum()
    samples = demo_picture.sample(network, canvas, 3)
    np.testing.assert_allclose(samples.points[0, 3, 3, tap], middle, atol=1e-3)
    modulation = 2 / (1 + np.exp(-np.linspace(-1, 1, 9)))
    np.testing.assert_allclose(samples.modulation[0, 3, 3], modulation, rtol=1e-5)


def test_share_of_points_on_ink():
    canvases = jnp.zeros((2, CANVAS, CANVAS, 1)).at[1, :, : CANVAS // 2].set(1.0)
    points = np.full((2, 1, 1, 2, 2), 3.0)
    points[:, :, :, 1, 1] = -3  # outside
    samples = demo_picture.Samples(np.zeros((1, 1, 2)), points, np.ones((2, 1, 1, 2)))
    assert demo_picture.on_ink(samples, canvases) == 0.25


@pytest.mark.parametrize("module", ["optax", "rich.console"])
def test_missing_extra(module, monkeypatch, capsys):
    for name in ("demo_picture", "demo_training"):
        monkeypatch.delitem(sys.modules, f"oxijax._cli.{name}", raising=False)
        monkeypatch.delattr(oxijax._cli, name, raising=False)
    monkeypatch.setitem(sys.modules, module, None)
    assert main(["demo"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert module in line
    assert 'pip install "flax>=' in line


def test_help_needs_no_extra():
    code = """if True:
        import sys
        for name in ("flax", "matplotlib", "optax", "rich", "sklearn"):
            sys.modules[name] = None
        from oxijax.__main__ import main
        main(["demo", "--help"])
    """
    status, said = python("-c", code)
    assert status == 0, said
    assert said.startswith("usage: ")
    assert "--output" in said
