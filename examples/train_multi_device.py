"""Trains the model of flax_nnx.py on several devices, each of which takes a part of every batch.

`python examples/train_multi_device.py --checkpoint /tmp/run` uses all devices that there are, and
where CPUs stand in for them, as many as `--devices 4` says. Started again, it goes on after the
newest checkpoint. It needs `pip install ".[demo]"`.
"""

import argparse
import json
import math
import pathlib
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
from flax import nnx
from flax_nnx import Model
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from rich.progress import Progress, TextColumn


def read_batch(step: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """This process's part of a step's batch: images, and where each is brightest.

    It depends on the step alone: a run that goes on sees what it would have seen.
    """
    places = np.random.default_rng(step).uniform(size=(size, 2)).astype(np.float32)
    places = np.split(places, jax.process_count())[jax.process_index()]
    rows, columns = np.indices((16, 16), np.float32) / 15
    distances = (rows - places[:, :1, None]) ** 2 + (columns - places[:, 1:, None]) ** 2
    return np.exp(-20 * distances)[..., None], places


def create(dtype: str) -> tuple[Model, nnx.Optimizer]:
    """A model that computes in `dtype`, with parameters in float32, and its optimizer."""
    model = Model(nnx.Rngs(0), dtype)
    return model, nnx.Optimizer(model, optax.adam(3e-3), wrt=nnx.Param)


@nnx.jit
def train_step(
    model: Model, optimizer: nnx.Optimizer, images: jax.Array, places: jax.Array
) -> jax.Array:
    """Updates the model once with a batch of [micro batches, images of each, ...]; its loss."""
    structure, parameters = nnx.split(model)

    def loss(parameters: nnx.State, images: jax.Array, places: jax.Array) -> jax.Array:
        predicted = nnx.merge(structure, parameters)(images)
        return jnp.mean((predicted.astype(jnp.float32) - places) ** 2)

    def add(total, micro_batch):
        return jax.tree.map(jnp.add, total, jax.value_and_grad(loss)(parameters, *micro_batch)), ()

    zeros = jax.tree.map(jnp.zeros_like, (jnp.float32(0), parameters))
    total, _ = jax.lax.scan(add, zeros, (images, places))
    value, gradients = jax.tree.map(lambda x: x / len(images), total)
    optimizer.update(model, gradients)
    return value


def train(args: argparse.Namespace, split: NamedSharding) -> list[float]:
    """Trains up to step `args.steps`, and returns the losses of the steps that were left."""
    model, optimizer = nnx.jit(create, static_argnums=0)(args.dtype)
    first, manager = 0, None
    if args.checkpoint:
        options = ocp.CheckpointManagerOptions(max_to_keep=2, cleanup_tmp_directories=True)
        manager = ocp.CheckpointManager(args.checkpoint.absolute(), options=options)
        if (newest := manager.latest_step()) is not None:
            state = ocp.args.StandardRestore(nnx.state((model, optimizer)))
            nnx.update((model, optimizer), manager.restore(newest, args=state))
            first = newest

    leads = jax.process_index() == 0
    if leads and first:
        print(f"goes on after {first} steps")
    losses = []
    loss_column = TextColumn("loss {task.fields[loss]:.5f}")
    with Progress(*Progress.get_default_columns(), loss_column, disable=not leads) as progress:
        bar = progress.add_task("step", total=args.steps, completed=first, loss=math.nan)
        for step in range(first, args.steps):
            parts = (
                part.reshape(args.accumulate, -1, *part.shape[1:])
                for part in read_batch(step, args.batch)
            )
            batch = (jax.make_array_from_process_local_data(split, part) for part in parts)
            losses.append(train_step(model, optimizer, *batch))
            progress.update(bar, completed=step + 1)
            if (step - first) % 10 == 0:  # not always: to read a loss is to wait for it
                progress.update(bar, loss=float(losses[-1]))
            if manager and ((step + 1) % args.save_every == 0 or step + 1 == args.steps):
                state = ocp.args.StandardSave(nnx.state((model, optimizer)))
                manager.save(step + 1, args=state)  # goes on while it is written
    if manager:
        manager.close()

    losses = [float(loss) for loss in losses]
    if leads and losses:
        print(f"loss of step {args.steps - 1}: {losses[-1]:.6f}")
    if leads and args.losses:
        args.losses.write_text(json.dumps(losses))
    return losses


def run(args: argparse.Namespace) -> list[float]:
    """Trains over all processes that there are; returns the losses."""
    if args.devices:
        jax.config.update("jax_num_cpu_devices", args.devices)
    processes = range(jax.process_count())
    devices = [device for i in processes for device in jax.local_devices(i)[: args.devices]]
    if args.devices and len(devices) < args.devices * len(processes):
        raise SystemExit(f"--devices {args.devices}: there are {jax.local_device_count()}")
    if args.batch % (args.accumulate * len(devices)):
        raise SystemExit(
            f"--batch {args.batch} is not a multiple of --accumulate {args.accumulate}, "
            f"times {len(devices)} devices"
        )
    # Explicit: the type of each array says how it is split. That of parameters says that all
    # devices have them, so JAX sums their gradients over the parts of a batch.
    mesh = jax.make_mesh((len(devices),), ("data",), (AxisType.Explicit,), devices=devices)
    with jax.set_mesh(mesh):
        return train(args, NamedSharding(mesh, P(None, "data")))


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser()
    add = parser.add_argument
    add("--steps", type=int, default=200, help="%(default)s by default")
    add("--batch", type=int, default=64, help="images of a step on all devices; %(default)s")
    add("--accumulate", type=int, default=1, help="in how many micro batches; %(default)s")
    add("--dtype", choices=["float32", "bfloat16"], default="bfloat16", help="%(default)s")
    add("--checkpoint", type=pathlib.Path, help="directory to save to, and to go on from")
    add("--save-every", type=int, default=50, help="so many steps; %(default)s")
    add("--devices", type=int, help="how many a process uses; all by default")
    add("--losses", type=pathlib.Path, help="JSON file to write all losses to")
    return parser


def main(argv: Sequence[str] | None = None) -> list[float]:
    return run(arguments().parse_args(argv))


if __name__ == "__main__":
    main()
