"""Trains the alignment of BasicVSR++ on a photograph, and draws what it does.

A camera moves over scikit-learn's photograph of a tower. Of the last two frames the flow network
and the deformable alignment of BasicVSR++ make the current one, and learn it from nothing but such
frames: samples follow the flows, and a predicted residue corrects them.

`python examples/basicvsr_pp.py` trains for as many seconds as it is told, compares what is aligned
with the last frame on a part of the photograph that it has not seen, and draws both. It needs
`pip install ".[demo]"`. `basicvsr_network.py` has the whole network, for videos and for
pretrained weights.
"""

import argparse
import json
import math
import pathlib
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from alignment_picture import draw
from basicvsr_network import align, alignment
from flax import nnx
from moving_frames import Aligned, Frames, make_frames, psnr, read_photograph
from rich.progress import Progress, TextColumn
from spynet import SPyNet, warp

import oxijax

RATE = 2e-3  # of learning, at its highest


class FrameAlignment(nnx.Module):
    """The flow network and the alignment of BasicVSR++, for frames themselves as features."""

    def __init__(self, rngs: nnx.Rngs):
        self.spynet = SPyNet((8, 16, 8, 8), rngs=rngs)
        self.layer = alignment(3, offset_groups=2, max_residue=10.0, rngs=rngs, hidden=24)

    def __call__(self, frames: Frames) -> Aligned:
        current, before, before_last = frames
        pairs = jnp.concatenate([current, before]), jnp.concatenate([before, before_last])
        flow, flow_before = jnp.split(self.spynet(*pairs), 2)
        flow_2 = flow + warp(flow_before, flow)
        image, (offset, mask) = align(self.layer, current, before, before_last, flow, flow_2)
        return Aligned(image, warp(before, flow, "border"), offset, mask)


class Trained(NamedTuple):
    """A network after its time, and the loss of its last step."""

    network: FrameAlignment
    steps: int
    loss: float


def train(photograph: jax.Array, args: argparse.Namespace) -> Trained:
    """Trains a network for `args.seconds`, not counting what compilation takes."""
    structure, parameters = nnx.split(FrameAlignment(nnx.Rngs(args.seed)))
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.scale_by_adam())
    state = optimizer.init(parameters)

    def loss(parameters: nnx.State, frames: Frames) -> jax.Array:
        found = nnx.merge(structure, parameters)(frames)
        # The flow alone has to align as well, so that it is one.
        differences = jnp.stack([found.image, found.warped]) - frames.current
        return jnp.sum(jnp.mean(jnp.sqrt(differences**2 + 1e-6), axis=(1, 2, 3, 4)))

    def step(
        parameters: nnx.State, state: optax.OptState, key: jax.Array, rate: jax.Array
    ) -> tuple[nnx.State, optax.OptState, jax.Array]:
        frames = make_frames(photograph, key, args.batch, unseen=False)
        value, gradients = jax.value_and_grad(loss)(parameters, frames)
        updates, state = optimizer.update(gradients, state)
        parameters = jax.tree.map(lambda p, u: p - rate * u, parameters, updates)
        return parameters, state, value

    key = jax.random.key(args.seed)
    run = jax.jit(step, donate_argnums=(0, 1)).lower(parameters, state, key, 0.0).compile()
    steps, value = 0, jnp.inf
    loss_column = TextColumn("loss {task.fields[loss]:.4f}")
    with Progress(*Progress.get_default_columns(), loss_column) as progress:
        bar = progress.add_task("training", total=args.seconds, loss=math.inf)
        start, seconds = time.perf_counter(), 0.0
        while seconds < args.seconds:
            # A cosine of the time, since nobody knows how many steps there will be.
            rate = RATE * min(1, (steps + 1) / 20) * math.cos(seconds / args.seconds * math.pi / 2)
            key, batch = jax.random.split(key)
            parameters, state, value = run(parameters, state, batch, rate)
            progress.update(bar, completed=seconds, loss=float(value))
            steps, seconds = steps + 1, time.perf_counter() - start
        progress.update(bar, completed=args.seconds)
    return Trained(nnx.merge(structure, parameters), steps, float(value))


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Trains, compares, draws a picture and returns the figures."""
    args = arguments().parse_args(argv)
    photograph = read_photograph()
    network, steps, loss = train(photograph, args)
    frames = make_frames(photograph, jax.random.key(args.seed + 1), args.frames, unseen=True)
    aligned = nnx.jit(lambda network, frames: network(frames))(network, frames)
    found = {
        "the last frame as it is": frames.before,
        "moved by the flow": aligned.warped,
        "aligned": aligned.image,
    }
    figures = {
        "jax": jax.__version__,
        **{name: getattr(args, name) for name in ("seconds", "batch", "seed", "frames")},
        "parameters": sum(x.size for x in jax.tree.leaves(nnx.state(network, nnx.Param))),
        "steps": steps,
        "loss": loss,
        "psnr_db": {name: psnr(image, frames.current) for name, image in found.items()},
    }
    print(f"{args.frames} frames of what was not seen, after {steps} steps; PSNR in dB:")
    for name, value in figures["psnr_db"].items():
        print(f"  {name}: {value:.2f}")
    if args.json:
        args.json.write_text(json.dumps(figures, indent=1) + "\n")
    number = most_telling(frames)
    one = jax.tree.map(lambda array: array[number : number + 1], (frames, aligned))
    draw(args.picture, one[0], one[1], where_it_looks(network, *one))
    print(f"drawn: {args.picture}")
    return figures


def most_telling(frames: Frames) -> int:
    """The number of the frames with the most detail that is not where it was."""
    return int(jnp.argmax(jnp.mean((frames.current - frames.before) ** 2, axis=(1, 2, 3))))


def where_it_looks(network: FrameAlignment, frames: Frames, aligned: Aligned) -> oxijax.Samples:
    """Where the alignment samples the last two frames, one in each of its offset groups."""
    inputs = jnp.concatenate([frames.before, frames.before_last], axis=-1)
    kernel = network.layer.kernel[...]
    return oxijax.sampling_locations(
        oxijax.deform_conv, inputs, aligned.offset, kernel, aligned.mask
    )


def arguments() -> argparse.ArgumentParser:
    def positive(kind: Callable[[str], float]) -> Callable[[str], float]:
        def read(text: str) -> float:
            if not (value := kind(text)) > 0 or math.isinf(value):
                raise argparse.ArgumentTypeError(f"must be positive and finite, got {text}")
            return value

        return read

    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add = parser.add_argument
    add("--seconds", type=positive(float), default=90, help="of training; %(default)s")
    add("--batch", type=positive(int), default=4, help="frames of a step; %(default)s")
    add("--frames", type=positive(int), default=64, help="to test with; %(default)s")
    add("--seed", type=int, default=0, help="%(default)s")
    picture = pathlib.Path("basicvsr_pp.png")
    add("--picture", type=pathlib.Path, default=picture, help="file to draw to; %(default)s")
    add("--json", type=pathlib.Path, help="file to write the figures to as well")
    return parser


if __name__ == "__main__":
    main()
