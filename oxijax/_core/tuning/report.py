"""The results of `oxijax.tune`, as values and as a table."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

__all__ = ["TimedPlan", "Tuned", "TunedCall", "plan_fields"]


@dataclasses.dataclass(frozen=True)
class TimedPlan:
    """A plan of a kernel, with its time.

    Attributes:
      plan: how the kernel's blocks share the work, a frozen dataclass.
      microseconds: the microseconds of a launch, measured.
      modelled_us: what the model said, in microseconds; None where it was not asked.
    """

    plan: Any
    microseconds: float
    modelled_us: float | None = None


@dataclasses.dataclass(frozen=True)
class TunedCall:
    """The plans of one kernel call.

    Attributes:
      gpu: name of the GPU that they were timed on.
      kernel: name of the kernel.
      config: its configuration, a frozen dataclass.
      shapes: the shapes of operands and results as they lie in the memory of one device, by name.
      candidates: the plans that were timed: the kernel's own choice first, then the others in the
        order in which they promised most.
    """

    gpu: str
    kernel: str
    config: Any
    shapes: Mapping[str, tuple[int, ...]]
    candidates: tuple[TimedPlan, ...]

    @property
    def kept(self) -> TimedPlan:
        """The fastest one, which is kept; of equally fast ones the first."""
        return min(self.candidates, key=lambda timed: timed.microseconds)

    @property
    def ordered_by(self) -> str:
        """By what candidates were chosen and ordered: "model", or "generation" without one."""
        modelled = any(timed.modelled_us is not None for timed in self.candidates)
        return "model" if modelled else "generation"

    @property
    def model_first(self) -> TimedPlan | None:
        """The one that the model took for the fastest; None where it was not asked."""
        asked = [timed for timed in self.candidates if timed.modelled_us is not None]
        return min(asked, key=lambda timed: timed.modelled_us or 0.0, default=None)

    def __str__(self) -> str:
        arrays = ", ".join(f"{name}{list(shape)}" for name, shape in self.shapes.items())
        lines = [f"{self.kernel} on {self.gpu}: {arrays}"]
        lines.append(
            f"  {'us':>10} {'modelled':>10}  plan (candidates ordered by {self.ordered_by})"
        )
        own = self.candidates[0].plan
        for timed in self.candidates:
            modelled = "-" if timed.modelled_us is None else f"{timed.modelled_us:.1f}"
            marks = ["the kernel's own choice"] * (timed is self.candidates[0])
            marks += ["the model's first"] * (timed is self.model_first)
            marks += ["kept"] * (timed is self.kept)
            shown = plan_fields(timed.plan, None if timed.plan is own else own)
            note = f" <- {', '.join(marks)}" if marks else ""
            lines.append(f"  {timed.microseconds:>10.1f} {modelled:>10}  {shown}{note}")
        return "\n".join(lines)


@dataclasses.dataclass(frozen=True, repr=False)
class Tuned:
    """What `oxijax.tune` has found; printed, it is a table.

    Attributes:
      calls: the kernel calls of the function, in the order in which they were resolved.
    """

    calls: tuple[TunedCall, ...]

    def __iter__(self) -> Iterator[TunedCall]:
        return iter(self.calls)

    def __len__(self) -> int:
        return len(self.calls)

    def __getitem__(self, index: int) -> TunedCall:
        return self.calls[index]

    def __repr__(self) -> str:
        return "\n\n".join(map(str, self.calls))


def plan_fields(plan: Any, other: Any | None = None) -> str:
    """The fields of a plan; of two plans those in which it differs from the other."""
    values = {field.name: getattr(plan, field.name) for field in dataclasses.fields(plan)}
    return ", ".join(
        f"{name}={value.__name__ if isinstance(value, type) else value}"
        for name, value in values.items()
        if other is None or value != getattr(other, name)
    )
