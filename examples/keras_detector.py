"""D-FINE of zeromodels that learns to find handwritten digits, with two ways of sampling.

`KERAS_BACKEND=jax python examples/keras_detector.py` makes a small D-FINE with random weights, and
trains it on scenes of scikit-learn's digits. Each step is made twice from the same weights: with
the detector's own sampling, and with what `oxijax.keras.accelerate` puts there, whose step is
taken. It prints time, memory and losses of both and the average precision, and draws what is
found. That takes ten minutes on two cores. It needs
`pip install ".[demo,keras]" zeromodels==1.3.6`.

Source: Peng et al., "D-FINE: Redefine Regression Task in DETRs as Fine-grained Distribution
Refinement", 2024.
"""

import argparse
import contextlib
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

SAMPLINGS = ("zeromodels", "oxijax")
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
    """A detector and its training step."""

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


def train(args: argparse.Namespace, digits: Digits) -> tuple[dict[str, Any], Any]:
    """Figures of both samplings by their names, and a function that finds digits in images."""
    keras.utils.set_random_seed(args.seed)
    training = Training(detector(), digits, args.batch, args.steps)
    programs, found, state = {}, {}, training.start()
    for name in SAMPLINGS:
        ours = name == "oxijax"
        with oxijax.keras.accelerate("zeromodels") if ours else contextlib.nullcontext():
            programs[name] = jax.jit(training.step).lower(state, jax.random.key(0)).compile()
        temporaries = programs[name].memory_analysis().temp_size_in_bytes
        found[name] = {"temporaries_mib": temporaries / 2**20, "losses": [], "seconds": []}
    key, after = jax.random.key(args.seed), state
    for _ in track(range(args.steps), "training"):
        key, batch = jax.random.split(key)
        for name, program in programs.items():  # the last one's step is taken
            start = time.perf_counter()
            after, value = jax.block_until_ready(program(state, batch))
            found[name]["seconds"].append(time.perf_counter() - start)
            found[name]["losses"].append(float(value))
        state = after
    find = jax.jit(lambda images: training.find(state[0], state[1], images)[0][-1])
    return found, find


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Trains, prints a table, draws a picture and returns the figures."""
    args = arguments().parse_args(argv)
    digits, unseen = read_digits()
    test: Scenes = make_scenes(unseen, jax.random.key(args.seed + 1), args.scenes)
    samplings, find = train(args, digits)
    found = find(test.images)
    scores = np.asarray(jax.nn.sigmoid(found.logits))
    precision = average_precision(np.asarray(found.boxes), scores, test)
    table = Table("sampling", "ms a step", "temporaries, MiB", "first loss", "last loss")
    for name, each in samplings.items():
        losses, milliseconds = each["losses"], 1e3 * np.median(each["seconds"])
        cells = f"{milliseconds:.0f} {each['temporaries_mib']:.0f} {losses[0]:.5f} {losses[-1]:.5f}"
        table.add_row(name, *cells.split())
    ours, theirs = (np.asarray(samplings[name]["losses"]) for name in ("oxijax", "zeromodels"))
    report = {
        **{name: getattr(args, name) for name in ("steps", "batch", "scenes", "seed")},
        "samplings": samplings,
        "losses_differ_by": float(np.max(np.abs(ours / theirs - 1))),
        "AP": float(precision.mean()),
        "AP50": float(precision[np.argmin(abs(IOUS - 0.5))]),
    }
    Console().print(table)
    print(
        f"losses from the same weights differ by at most {report['losses_differ_by']:.1e} of them"
    )
    print(f"AP {report['AP']:.3f}, at an IoU of 0.5 {report['AP50']:.3f}")
    if args.json:
        libraries = {name: version(name) for name in ("keras", "zeromodels")}
        content = {"jax": jax.__version__, "libraries": libraries, **report}
        args.json.write_text(json.dumps(content, indent=1) + "\n")
    draw(args.picture, test, {"D-FINE": found})
    print(f"drawn: {args.picture}")
    return report


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser()
    for name, default, what in (
        ("steps", 1000, "of training"),
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
