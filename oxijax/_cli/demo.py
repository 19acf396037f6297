"""Train a classifier of handwritten digits with and without deformable convolutions.

Prints how well both recognise digits that they have never seen, and draws where they look.
Both learn from the same batches; with more steps for both, the gap between them narrows.
"""

import argparse
import dataclasses
import io
import statistics
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from oxijax._cli import needs_extra
from oxijax._cli.arguments import COUNT, PictureFile, add_output_argument

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from oxijax._cli.demo_training import Classifier, Digits

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_output_argument(
        parser,
        "--output",
        PictureFile,
        default="deform_conv_demo.png",
        metavar="FILE",
        help="the picture, a PNG file (default: %(default)s)",
    )
    parser.add_argument(
        "--seeds",
        type=COUNT,
        default=3,
        metavar="N",
        help="train both networks for each of the seeds 0 to N-1 (default: %(default)s)",
    )
    parser.add_argument(
        "--steps",
        type=COUNT,
        default=400,
        metavar="N",
        help="batches of digits that each network learns from (default: %(default)s)",
    )


def run(args: argparse.Namespace) -> int:
    with needs_extra("demo"):
        from rich.console import Console

        from oxijax._cli import demo_picture, demo_training

    start = time.perf_counter()
    console = Console(highlight=False)
    console.print("Training takes two to three minutes on two cores.")
    splits = [demo_training.Digits.split(seed) for seed in range(args.seeds)]
    contestants = [_Contestant("plain"), _Contestant("deformable")]
    _train_all(contestants, splits, args.steps, console)

    plain, deformable = contestants
    console.print(_table(contestants))
    console.print(_verdict(plain, deformable, args.steps))
    picture = io.BytesIO()
    demo_picture.draw(picture, plain.networks[0], deformable.networks[0], splits[0])
    args.output.write(picture.getvalue())
    console.print(f"Picture: {args.output.path}", soft_wrap=True)
    console.print(f"Time: {time.perf_counter() - start:.0f} s")
    return 0


@dataclasses.dataclass
class _Contestant:
    """One kind of network, and how it did; lists have an element a seed."""

    name: str
    networks: list["Classifier"] = dataclasses.field(default_factory=list)
    accuracies: list[float] = dataclasses.field(default_factory=list)
    seconds: float = 0.0

    @property
    def mean(self) -> float:
        return statistics.fmean(self.accuracies)


def _train_all(
    contestants: Sequence[_Contestant],
    splits: Sequence["Digits"],
    steps: int,
    console: "Console",
) -> None:
    """Trains a network of each kind for each split: a line each, and a bar on a terminal."""
    import jax
    from rich import progress

    from oxijax._cli import demo_training

    bar = progress.Progress(
        *("{task.description}", progress.BarColumn(), progress.MofNCompleteColumn()),
        *("{task.fields[state]}", progress.TimeElapsedColumn()),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    with bar:
        for seed, digits in enumerate(splits):
            for contestant in contestants:
                task = bar.add_task(
                    f"seed {seed}, {contestant.name}", total=steps, state="compiling"
                )
                start = time.perf_counter()

                def show(loss: jax.Array, task: progress.TaskID = task) -> None:
                    bar.update(task, advance=1, state=f"loss {float(loss):.3f}")

                network, losses = demo_training.train(
                    digits,
                    deformable=contestant.name == "deformable",
                    steps=steps,
                    seed=seed,
                    on_step=show,
                )
                contestant.seconds += time.perf_counter() - start
                contestant.networks.append(network)
                contestant.accuracies.append(demo_training.accuracy(network, digits))
                bar.remove_task(task)
                console.print(
                    f"seed {seed}, {contestant.name + ':':<11} loss {losses[-20:].mean():.3f}, "
                    f"held-out accuracy {contestant.accuracies[-1]:.1%}"
                )


def _table(contestants: Sequence[_Contestant]) -> "Table":
    from rich.table import Table

    from oxijax._cli.demo_training import parameter_count

    table = Table(title="Accuracy on held-out digits")
    table.add_column()
    for contestant in contestants:
        table.add_column(contestant.name, justify="right")

    seeds = len(contestants[0].accuracies)
    for seed in range(seeds):
        table.add_row(f"seed {seed}", *(f"{c.accuracies[seed]:.1%}" for c in contestants))
    table.add_section()
    table.add_row("mean", *(f"{c.mean:.1%}" for c in contestants), style="bold")
    if seeds > 1:
        spreads = (statistics.stdev(c.accuracies) for c in contestants)
        table.add_row("standard deviation", *(f"{spread:.1%}" for spread in spreads))
    table.add_section()
    table.add_row("parameters", *(f"{parameter_count(c.networks[0]):,}" for c in contestants))
    table.add_row("training, with compilation", *(f"{c.seconds:.0f} s" for c in contestants))
    return table


def _verdict(plain: _Contestant, deformable: _Contestant, steps: int) -> str:
    """Who did better, and at what price, in a sentence."""
    worse, better = sorted((plain, deformable), key=lambda contestant: contestant.mean)
    if better.mean == worse.mean:
        return f"After {steps} steps each, both networks do equally well on average."
    pairs = list(zip(better.accuracies, worse.accuracies, strict=True))
    wins = sum(b > w for b, w in pairs)
    return (
        f"After {steps} steps each, the {better.name} network is better by "
        f"{100 * (better.mean - worse.mean):.1f} points on average, and for {wins} of "
        f"{len(pairs)} seeds; training it took {better.seconds / worse.seconds:.1f} times as long."
    )
