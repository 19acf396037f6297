"""Times the sampling of detectors in Keras, before and after `oxijax.keras.accelerate`.

KERAS_BACKEND=jax python benchmarks/keras_detectors.py --json FILE

It needs what requirements-keras-clients.txt lists. Every function that is replaced has the sizes of
a published model; its results and gradients are compared with the replacement's for ten drawn
inputs of other sizes. Then small models with random weights predict before, within and after.
"""

import argparse
import datetime
import functools
import importlib
import importlib.metadata
import json
import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from sampling import PASSES, Case, compare, inputs_of, with_gradients

import oxijax.keras
from oxijax._cli.bench_rounds import machine, versions
from oxijax.keras._cores import CORES, Core
from oxijax.keras._probes import Sizes

__all__ = ["drawn_sizes", "errors", "main", "model_report", "title"]

_DETECTION = ((80, 80), (40, 40), (20, 20))  # of images of 640 x 640
_SEGMENTATION = ((48, 48), (24, 24), (12, 12))  # of 384 x 384
_LARGE = ((50, 50), (25, 25), (13, 13), (7, 7))  # of 400 x 400
_D_FINE = Sizes(2, _DETECTION, 300, 8, 32, (3, 6, 3))
_RT_DETR = _D_FINE._replace(points=(4,))
_PIXEL_DECODER = Sizes(2, _SEGMENTATION, 3024, 8, 32, (4,))
_SIZES = {
    "rf_detr": Sizes(2, ((40, 40),), 300, 16, 16, (2,)),
    "rt_detr": _RT_DETR,
    "rt_detr_v2": _RT_DETR,
    "grounding_dino": Sizes(2, _LARGE, 3343, 8, 32, (4,)),
    "dfine": _D_FINE,
    "mask2former": _PIXEL_DECODER,
    "oneformer": _PIXEL_DECODER,
    "d_fine": _D_FINE,
}
_GRID_SAMPLE = _RT_DETR._replace(batch=16, queries=800)  # images are 2 x 8 heads there
_VARIANTS = {
    "DFineMultiscaleDeformableAttention.call": ("default", "discrete"),
    "multi_scale_deformable_attention_v2": ("default", "discrete"),
    "grid_sample": ("", "align_corners", "pixels in one dimension"),
}


def title(core: Core) -> str:
    """A core as a row of a table has it: "zeromodels, rt_detr: ms_deform_attn_core"."""
    library, *_, family, _ = core.module.split(".")
    return f"{library}, {family}: {core.name}"


def drawn_sizes(seed: int) -> Sizes:
    """Small sizes that follow from a seed."""
    random = np.random.default_rng(seed)
    count = int(random.integers(1, 4))
    levels = tuple((int(h), int(w)) for h, w in random.integers(1, 9, (count, 2)))
    points = tuple(int(each) for each in random.integers(1, 5, count))
    batch, queries, heads, channels = (
        int(each) for each in random.integers((1, 1, 1, 1), (4, 9, 5, 17))
    )
    return Sizes(batch, levels, queries, heads, channels, points, seed)


def errors(core: Core, sizes: Sizes) -> tuple[float, float]:
    """The largest differences of values, and of gradients as shares of their largest."""
    value = gradient = 0.0
    for case in _cases(core, sizes):
        theirs, ours = (
            jax.jit(with_gradients(f))(*inputs_of(case)) for f in (case.plain, case.ours)
        )
        (y, gradients), (expected, expected_gradients) = ours, theirs
        value = max(value, float(jnp.abs(y - expected).max()))
        for a, b in zip(gradients, expected_gradients, strict=True):
            gradient = max(gradient, float(jnp.abs(a - b).max() / jnp.maximum(jnp.abs(b).max(), 1)))
    return value, gradient


def _cases(core: Core, sizes: Sizes) -> Iterator[Case]:
    """Calls of a function and of what replaces it, as functions of the arrays among arguments."""
    *owners, name = core.name.split(".")
    owner = functools.reduce(getattr, owners, importlib.import_module(core.module))
    original = getattr(owner, name)
    if hasattr(original, "__wrapped__"):
        raise SystemExit(f"{title(core)} is replaced already")
    for arguments in core.probe(owner, sizes):
        is_array = [isinstance(each, jax.Array) for each in arguments]
        call = functools.partial(_with_arrays, arguments, is_array)
        arrays = tuple(np.asarray(each) for each in arguments if isinstance(each, jax.Array))
        yield Case(
            functools.partial(call, core.stand_in(original)),
            functools.partial(call, original),
            arrays,
        )


def _with_arrays(
    arguments: Sequence[Any], is_array: Sequence[bool], function: Callable[..., Any], *arrays: Any
) -> Any:
    given = iter(arrays)
    found = function(
        *(next(given) if array else a for a, array in zip(arguments, is_array, strict=True))
    )
    return found[0] if isinstance(found, tuple) else found


def model_report(name: str, make: Callable[[], tuple[Any, Any]]) -> dict[str, Any]:
    """A model's results before, within and after `accelerate`."""
    from keras_models import outputs

    model, inputs = make()
    before = outputs(model, inputs)
    with oxijax.keras.accelerate(name.partition(":")[0]) as accelerated:
        assert not accelerated.left, accelerated
        within = outputs(model, inputs)
    after = outputs(model, inputs)
    return {
        "difference": max(float(np.abs(a - b).max()) for a, b in zip(before, within, strict=True)),
        # But for what masks have in the place of infinity.
        "largest": max(float(np.abs(a[np.abs(a) < 1e6]).max()) for a in before),
        "differs": any((a != b).any() for a, b in zip(before, within, strict=True)),
        "equal_after": all((a == b).all() for a, b in zip(before, after, strict=True)),
    }


def _core_report(core: Core, runs: int) -> dict[str, Any]:
    _, _, family, _ = core.module.rsplit(".", 3)
    sizes = _GRID_SAMPLE if core.name == "grid_sample" else _SIZES[family]
    found: dict[str, Any] = {}
    variants = _VARIANTS.get(core.name.rpartition(".")[2], _VARIANTS.get(core.name, ("",)))
    for variant, case in zip(variants, _cases(core, sizes), strict=True):
        found[variant] = {key: compare(case, wrap, runs) for key, wrap in PASSES.items()}
    values, gradients = zip(*(errors(core, drawn_sizes(seed)) for seed in range(10)), strict=True)
    return {
        "sizes": sizes._asdict(),
        "values_differ_by": max(values),
        "gradients_differ_by": max(gradients),
        "variants": found,
    }


def main() -> None:
    from keras_models import MODELS

    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", type=pathlib.Path, required=True, help="where results go")
    parser.add_argument("--runs", type=int, default=15, help="of each program")
    args = parser.parse_args()
    where = machine()  # before there is any load of our own
    cores = {}
    for core in CORES:
        report = cores[title(core)] = _core_report(core, args.runs)
        for variant, passes in report["variants"].items():
            ratios = {key: 1 / found["time_ratio"]["median"] for key, found in passes.items()}
            times = ", ".join(f"{key} {ratio:.2f} times as fast" for key, ratio in ratios.items())
            print(f"{title(core)} {variant}: {times}", flush=True)
        print(f"  differ by {report['values_differ_by']:.1e}, {report['gradients_differ_by']:.1e}")
    models = {}
    for name, make in MODELS.items():
        models[name] = model_report(name, make)
        print(name, models[name], flush=True)
    libraries = ("keras", "zeromodels", "keras-hub")
    report = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": where,
        "versions": versions() | {each: importlib.metadata.version(each) for each in libraries},
        "runs": args.runs,
        "cores": cores,
        "models": models,
    }
    args.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
