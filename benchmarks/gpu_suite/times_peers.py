"""Section times-peers: the sampling operators beside kernels of others, where those are.

All get the same operands, weights as they are, and are compared with oxijax's before they are
timed: others' by CUDA events, oxijax's as in the other sections.
"""

# pyright: reportMissingImports=false
import concurrent.futures
import dataclasses
import operator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gpu_suite.cuda_events import time_calls
from gpu_suite.jax_jobs import Job, Operands, check_device, forward, forward_backward, measure
from gpu_suite.layers import set_count
from gpu_suite.peers.calls import PEERS, Peer
from gpu_suite.recorder import Recorder
from gpu_suite.sampling_layers import SamplingLayer, layers, operands, work

__all__ = ["run"]

_LEAST_SECONDS = 4.0  # with less left nothing more is started
# Relative norms of a difference: each side may be off by the tolerance of oxijax's own tests.
_LARGEST_DIFFERENCE = {"float32": 2 * 2e-6, "bfloat16": 2 * 8e-3, "float16": 2 * 1e-3}
# Of gradients to places, which jump where a sample lies on a pixel and rounding decides the side.
_LARGEST_OF_PLACES = 1e-3
_PLACES = 2  # after the result and the gradient to images


def run(recorder: Recorder) -> None:
    check_device(recorder)
    given = [dataclasses.replace(layer, normalize=False) for layer in layers(recorder.mode.tiny)]
    recorder.put("layers_of_peers", value=[layer.name for layer in given])
    prepared = {} if recorder.mode.tiny else _load(recorder)
    for dtype in ("float32", "bfloat16", "float16"):
        for layer in given:
            peers = [
                peer
                for peer in PEERS
                if peer.windows == (layer.queries is None) and dtype in peer.dtypes
            ]
            if not peers:
                continue
            _measure_ours(recorder, layer, dtype)
            for peer in peers:
                if peer.name in prepared:
                    _measure(recorder, peer, prepared[peer.name], layer, dtype)


def _load(recorder: Recorder) -> dict[str, Any]:
    """By name, what makes the calls of a peer; notes which are not there, or fail."""
    found = {}
    with concurrent.futures.ThreadPoolExecutor(len(PEERS)) as pool:  # most of them compile
        loaded = {peer.name: pool.submit(peer.load) for peer in PEERS}
    for name, future in loaded.items():
        error = future.exception()
        if isinstance(error, ImportError | FileNotFoundError):
            why = str(error).strip().splitlines()[0]
            recorder.put("peers", name, value={"not_measured": why[:300]})
        elif error is not None:
            recorder.fail(name, f"{type(error).__name__}: {error}")
        else:
            found[name] = future.result()
    return found


def _sets(layer: SamplingLayer, dtype: str, tiny: bool) -> int:
    return set_count(work(layer, "forward", dtype), tiny)


def _measure_ours(recorder: Recorder, layer: SamplingLayer, dtype: str) -> None:
    sets = Operands(operands, layer, dtype, _sets(layer, dtype, recorder.mode.tiny))
    measure(
        recorder,
        [
            Job(layer.name, "forward", sets, forward(layer.ours), kernels=1, products=0),
            Job(
                *(layer.name, "forward_backward", sets, forward_backward(layer.ours)),
                kernels=3, products=0,
            ),
        ],
    )  # fmt: skip


def _measure(
    recorder: Recorder, peer: Peer, prepare: Any, layer: SamplingLayer, dtype: str
) -> None:
    import torch

    name = f"{peer.name} {layer.name} {dtype}"
    if recorder.left() < _LEAST_SECONDS:
        recorder.cut(name)
        return
    try:
        seeds = [jnp.int32(i) for i in range(_sets(layer, dtype, tiny=False))]
        given = jax.block_until_ready([_rounded(layer, dtype, seed) for seed in seeds])
        tensors = [[torch.from_dlpack(array).clone() for array in arrays] for arrays in given]
        calls = [prepare(layer, dtype, tuple(arrays[:-1]), arrays[-1]) for arrays in tensors]
        differences = _differences(layer, given[0], calls[0])
        recorder.put("differences", peer.name, layer.name, dtype, value=differences)
        bounds = [_LARGEST_DIFFERENCE[dtype]] * len(differences)
        bounds[_PLACES] = max(bounds[_PLACES], _LARGEST_OF_PLACES)
        if not all(map(operator.le, differences, bounds)):
            recorder.fail(name, f"its results differ from oxijax's by {differences}")
        for operation in ("forward", "backward", "both"):
            functions = [(getattr(one, operation),) for one in calls]
            if functions[0][0] is not None:
                times = time_calls(lambda call: call(), functions)
                recorder.put("peers", peer.name, layer.name, dtype, operation, value=times)
    except Exception as error:
        recorder.fail(name, f"{type(error).__name__}: {error}")
    torch.cuda.empty_cache()


def _rounded(layer: SamplingLayer, dtype: str, seed: jax.Array) -> tuple[jax.Array, ...]:
    """Operands whose places and weights a peer can have in the type of the images.

    Locations stay as they are: all peers take them in float32.
    """
    images, places, weights, grad_y = operands(layer, dtype, seed)
    if layer.queries is None:
        places = places.astype(dtype).astype(places.dtype)
    return images, places, weights.astype(dtype).astype(weights.dtype), grad_y


def _differences(layer: SamplingLayer, given: tuple[jax.Array, ...], calls: Any) -> list[float]:
    """The differences of the result and the gradients to images, places and weights."""
    y, pulled = jax.vjp(layer.ours, *given[:-1])
    found, gradients = calls.both()
    theirs = (found, *calls.arrange(gradients))
    return [_difference(a, b) for a, b in zip((y, *pulled(given[-1])), theirs, strict=True)]


def _difference(ours: jax.Array, theirs: Any) -> float:
    wanted = np.asarray(ours, np.float64)
    return float(
        np.linalg.norm(theirs.detach().double().cpu().numpy().reshape(wanted.shape) - wanted)
        / np.linalg.norm(wanted)
    )
