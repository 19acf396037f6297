"""Detectors of zeromodels and keras-hub with oxijax's sampling: functions, and whole models."""

import json
import os

import jax
import numpy as np
import pytest
from support.paths import ROOT
from support.processes import python

# What benchmarks/requirements-keras-clients.txt lists; benchmarks/README.md has the command.
pytestmark = pytest.mark.clients

import keras_detectors  # noqa: E402
import keras_models  # noqa: E402

import oxijax.keras  # noqa: E402
from oxijax.keras._cores import CORES  # noqa: E402

quiet = pytest.mark.filterwarnings("ignore")  # Keras's, of layers that others wrote


@quiet
def test_all_is_replaced():
    with oxijax.keras.accelerate() as accelerated:
        assert dict(accelerated.left) == {}
        assert len(accelerated.replaced) == len(CORES) == 10


@quiet
@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("core", CORES, ids=keras_detectors.title)
def test_values_and_gradients(core, seed):
    values, gradients = keras_detectors.errors(core, keras_detectors.drawn_sizes(seed))
    assert values <= 1e-5
    assert gradients <= 1e-5
    jax.clear_caches()


# Models of other libraries take gigabytes: each has a process of its own.
MODEL = """
import json, sys
import keras_detectors, keras_models

name = sys.argv[1]
print(json.dumps(keras_detectors.model_report(name, keras_models.MODELS[name])))
"""
PATHS = os.pathsep.join(str(ROOT / name) for name in (".", "benchmarks", "examples"))


@pytest.mark.parametrize("name", keras_models.MODELS)
def test_models(name):
    """Within 1e-5 of the results before, and bit for bit the same afterwards."""
    status, printed = python("-c", MODEL, name, PYTHONPATH=PATHS)
    assert status == 0, printed
    found = json.loads(printed.splitlines()[-1])
    assert np.isfinite(found["difference"])
    assert found["difference"] <= 1e-5 * max(1, found["largest"])
    # The sampling is another one; keras-hub's rounds alike where XLA optimises little.
    assert found["differs"] or name.startswith("keras_hub")
    assert found["equal_after"]


def test_example(tmp_path):
    """Both samplings of `examples/keras_detector.py` have the same losses."""
    picture, figures = tmp_path / "found.png", tmp_path / "figures.json"
    options = ["--steps", "4", "--batch", "2", "--scenes", "8"]
    program = str(ROOT / "examples" / "keras_detector.py")
    status, printed = python(
        *(program, *options, "--picture", str(picture), "--json", str(figures)), PYTHONPATH=PATHS
    )
    assert status == 0, printed
    report = json.loads(figures.read_text())
    assert len(report["samplings"]["oxijax"]["losses"]) == 4
    assert report["losses_differ_by"] < 1e-5
    assert picture.stat().st_size > 1000
