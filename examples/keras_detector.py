"""D-FINE of zeromodels that learns to find handwritten digits, with oxijax's sampling and without.

`KERAS_BACKEND=jax python examples/keras_detector.py` makes a small D-FINE with random weights, and
trains it on scenes of scikit-learn's digits, with its own sampling and with what
`oxijax.keras.accelerate` puts there: both take the same steps in turns, from the same weights. It
prints time and memory of a step, losses and average precision, and draws what both find.
That takes a quarter of an hour on two cores. It needs
`pip install ".[demo,keras]" zeromodels==1.3.6`.

Source: Peng et al., "D-FINE: Redefine Regression Task in DETRs as Fine-grained Distribution
Refinement", 2024.
"""

import argparse
import contextlib
import functools
import json
import pathlib
import time
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import keras
import numpy as np
from detection_loss import loss
from digit_picture import draw
from digit_scenes import (
    CLASSES,
    IOUS,
    SIZE,
    Digits,
    Scenes,
    average_precision,
    make_scenes,
    read_digits,
)  # fmt: skip
from rich.console import Console
from rich.progress import track
from rich.table import Table

import oxijax.keras

RATE, WARM_UP = 1e-3, 50  # of learning, and the steps that it rises for
State = tuple[list[jax.Array], list[jax.Array], list[jax.Array]]  # weights, statistics, optimizer


class Found(NamedTuple):
    """Boxes [N, Q, 4] and logits [N, Q, CLASSES]."""

    boxes: jax.Array
    logits: jax.Array


def detector() -> keras.Model:
    """D-FINE-N in small: its result is what the first stage and the last decoder find."""
    from zeromodels.models.dfine.dfine_model import DFineDetect  # pyright: ignore

    model = DFineDetect(
        stem_channels=(3, 16, 16), stage_in_channels=(16, 32, 64, 96),
        stage_mid_channels=(16, 16, 32, 32), stage_out_channels=(32, 64, 96, 128),
        stage_num_blocks=(1, 1, 1, 1), stage_numb_of_layers=(2, 2, 2, 2),
        encoder_in_channels=(64, 96, 128), encoder_hidden_dim=128, encoder_ffn_dim=256,
        hidden_dim=128, decoder_num_layers=2, decoder_ffn_dim=256, decoder_n_points=[3, 6, 3],
        num_classes=CLASSES, num_queries=12, image_size=SIZE,
    )  # fmt: skip
    for head in ("enc_score_head", "class_embed_1"):
        model.get_layer(head).bias.assign(np.full(CLASSES, -4.0))  # at first all scores are low
    corrections = model.get_layer("enc_bbox_head_2").output
    # Anchors are added to them by an operation without a name.
    logit = next(
        each.output for each in model.operations if each.input is corrections
        or (isinstance(each.input, list | tuple) and any(x is corrections for x in each.input))
    )  # fmt: skip
    first = (keras.ops.sigmoid(logit), model.get_layer("enc_score_head").output)
    return keras.Model(model.input, [first, (model.output["pred_boxes"], model.output["logits"])])


class Training:
    """A detector's training step, compiled where its sampling is that of now."""

    def __init__(self, model: keras.Model, digits: Digits, batch: int, steps: int):
        self.model, self.digits, self.batch = model, digits, batch
        rate = keras.optimizers.schedules.CosineDecay(
            0.0, steps, warmup_target=RATE, warmup_steps=WARM_UP
        )
        self.optimizer = keras.optimizers.AdamW(rate, weight_decay=1e-4, clipnorm=1.0)
        self.optimizer.build(model.trainable_variables)

    def start(self) -> State:
        variables = (self.model.trainable_variables, self.model.non_trainable_variables)
        found = (*variables, self.optimizer.variables)
        return tuple([jnp.array(each.value) for each in group] for group in found)  # pyright: ignore

    def compile(self, state: State) -> Any:
        return jax.jit(self.step, donate_argnums=0).lower(state, jax.random.key(0)).compile()

    def step(self, state: State, key: jax.Array) -> tuple[State, jax.Array]:
        scenes = make_scenes(self.digits, key, self.batch)
        weights, statistics, optimizer = state

        def of(weights: list[jax.Array]) -> tuple[jax.Array, list[jax.Array]]:
            found, after = self.find(weights, statistics, scenes.images, training=True)
            return loss(found, scenes), after

        (value, statistics), gradients = jax.value_and_grad(of, has_aux=True)(weights)
        weights, optimizer = self.optimizer.stateless_apply(optimizer, gradients, weights)
        return (weights, statistics, optimizer), value

    def find(
        self, weights: Any, statistics: Any, images: jax.Array, training: bool = False
    ) -> tuple[list[Found], list[jax.Array]]:
        """What both stages find in gray images, and the statistics afterwards."""
        images = jnp.tile(images, (1, 1, 1, 3))
        found, after = self.model.stateless_call(weights, statistics, images, training=training)
        return [Found(*each) for each in found], after


def train(args: argparse.Namespace, digits: Digits) -> tuple[dict[str, Any], dict[str, Any]]:
    """Figures of both samplings by name, and what each finds, a function of images."""
    keras.utils.set_random_seed(args.seed)
    training = Training(detector(), digits, args.batch, args.steps)
    programs, states, report = {}, {}, {}
    for name in ("zeromodels", "oxijax"):
        ours = name == "oxijax"
        with oxijax.keras.accelerate("zeromodels") if ours else contextlib.nullcontext():
            states[name] = training.start()
            programs[name] = training.compile(states[name])
        temporaries = programs[name].memory_analysis().temp_size_in_bytes
        report[name] = {"temporaries_mib": temporaries / 2**20, "losses": [], "seconds": []}
    key = jax.random.key(args.seed)
    for _ in track(range(args.steps), "training"):
        key, batch = jax.random.split(key)
        for name, program in programs.items():
            start = time.perf_counter()
            states[name], value = jax.block_until_ready(program(states[name], batch))
            report[name]["seconds"].append(time.perf_counter() - start)
            report[name]["losses"].append(float(value))
    find = jax.jit(lambda state, images: training.find(state[0], state[1], images)[0][-1])
    return report, {name: functools.partial(find, state) for name, state in states.items()}


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Trains both, prints a table, draws a picture and returns the figures."""
    args = arguments().parse_args(argv)
    digits, unseen = read_digits()
    test: Scenes = make_scenes(unseen, jax.random.key(args.seed + 1), args.scenes)
    report, find = train(args, digits)
    found = {name: each(test.images) for name, each in find.items()}
    table = Table("sampling", "ms a step", "temporaries, MiB", "first loss", "last", "AP", "AP50")
    for name, figures in report.items():
        scores = np.asarray(jax.nn.sigmoid(found[name].logits))
        precision = average_precision(np.asarray(found[name].boxes), scores, test)
        figures["AP"] = float(precision.mean())
        figures["AP50"] = float(precision[np.argmin(abs(IOUS - 0.5))])
        losses, milliseconds = figures["losses"], 1e3 * np.median(figures["seconds"])
        cells = (
            f"{milliseconds:.0f} {figures['temporaries_mib']:.0f} {losses[0]:.4f} {losses[-1]:.4f}"
        )
        table.add_row(name, *cells.split(), f"{figures['AP']:.3f}", f"{figures['AP50']:.3f}")
    Console().print(table)
    if args.json:
        options = {name: getattr(args, name) for name in ("steps", "batch", "scenes", "seed")}
        libraries = {name: version(name) for name in ("keras", "zeromodels")}
        content = {"jax": jax.__version__, "libraries": libraries, **options, "samplings": report}
        args.json.write_text(json.dumps(content, indent=1) + "\n")
    draw(args.picture, test, found)
    print(f"drawn: {args.picture}")
    return report


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser()
    for name, default, what in (
        ("steps", 1500, "of training each"),
        ("batch", 8, "scenes of a step"),
        ("scenes", 300, "to test with"),
        ("seed", 0, "of weights and scenes"),
    ):
        parser.add_argument(f"--{name}", type=int, default=default, help=f"{what}; %(default)s")
    picture = pathlib.Path("keras_detector.png")
    parser.add_argument("--picture", type=pathlib.Path, default=picture, help="%(default)s")
    parser.add_argument("--json", type=pathlib.Path, help="file to write the figures to as well")
    return parser


if __name__ == "__main__":
    main()
