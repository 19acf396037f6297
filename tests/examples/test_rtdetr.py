"""RT-DETRv2 in Flax against transformers' with the same weights, from feature maps to boxes."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from rtdetr import Sizes, load, main
from safetensors.numpy import save_file
from support.helpers import assert_close
from support.recorded import read_recorded

import oxijax.nnx

RECORDED = read_recorded("rtdetr_v2.npz")
SMALL = Sizes(16, 2, 3, 2, layers=2, feed_forward=20, queries=7, classes=3)
each_case = pytest.mark.parametrize("case", RECORDED)


@each_case
@pytest.mark.usefixtures("x64")
def test_is_transformers_model(case, monkeypatch):
    """Boxes, logits, and the gradients to the maps, in float64."""
    exact = functools.partial(oxijax.nnx.MSDeformAttn, offset_dtype=jnp.float64)
    monkeypatch.setattr(oxijax.nnx, "MSDeformAttn", exact)
    module = RECORDED[case]
    model = load(SMALL._replace(**module.config), module.state, published=False)
    structure, parameters = nnx.split(model)
    parameters = jax.tree.map(lambda x: x.astype(jnp.float64), parameters)
    maps = [jnp.asarray(np.moveaxis(x, 1, -1), jnp.float64) for x in module.inputs.values()]

    def run(maps):
        return jnp.concatenate(nnx.merge(structure, parameters)(maps), axis=-1)

    y, vjp = jax.vjp(jax.jit(run), maps)
    assert_close(y, module.results["y"], 1e-12)
    for level, found in enumerate(vjp(jnp.asarray(module.grad_y, jnp.float64))[0]):
        expected = np.moveaxis(module.results[f"dmap{level}"], 1, -1)
        assert_close(found, expected, 1e-12, f"map {level}")


def test_published_names(tmp_path):
    """A file with the names that published ones have is the same model."""
    state = RECORDED["RTDETRv2/default"].state
    published = {
        name.replace("o_proj", "out_proj").replace(".mlp.fc", ".fc"): value.astype(np.float32)
        for name, value in state.items()
    }
    extra = {"model.backbone.model.conv.weight": np.ones((2, 2), np.float32)}
    save_file(published | extra, tmp_path / "model.safetensors")
    found = load(SMALL, tmp_path / "model.safetensors", published=True)
    expected = load(SMALL, state, published=False)
    jax.tree.map(np.testing.assert_array_equal, nnx.state(found), nnx.state(expected))
    other = SMALL._replace(points=4, heads=1)
    with pytest.raises(ValueError, match=r"points|shape"):
        load(other, state, published=False)


@pytest.mark.slow
def test_published_sizes(capsys):
    boxes, logits = main()
    assert (boxes.shape, logits.shape) == ((1, 300, 4), (1, 300, 80))
    assert bool(jnp.isfinite(boxes).all())
    assert "ms for 300 boxes" in capsys.readouterr().out
