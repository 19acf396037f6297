"""`oxijax.resolve`: which implementation the operators of a function take, and why."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax

from oxijax._core.arguments.checks import check_arguments, check_callable
from oxijax._core.calls.decisions import Decision, Launch, noted_decisions
from oxijax._core.calls.kernel_call import KernelCall, emulated_gpu
from oxijax._core.calls.tuned_plans import tuned_plans
from oxijax._core.gpu import driver as _driver
from oxijax._core.launch._spec import registered
from oxijax._core.process import emulation
from oxijax._core.tuning.report import plan_fields
from ptx.isa.targets import TARGETS, Target

__all__ = ["Resolved", "ResolvedCall", "ResolvedKernel", "resolve"]


def resolve(function: Callable[..., Any], *args: Any) -> "Resolved":
    """Which implementation each operator of a function takes, with which plans, and why.

    The function is lowered for JAX's default device and is not run. Within
    `oxijax.testing.emulate_gpu` the answer is for the GPU that is emulated.

    Args:
      function: a function of arrays, jitted or not, such as a training step.
      *args: what it is called with: arrays, numbers and pytrees of them. In place of an array a
        `jax.ShapeDtypeStruct` stands for one of its shape and dtype.

    Returns:
      The calls of oxijax's operators and of their gradients, in the order of the program, equal
      ones once; printed, it is a table. Of a call that XLA splits over devices, kernels have the
      part of one of them, and are missing where XLA decides later.

    Raises:
      TypeError: function is not callable, or a leaf of args is not an array; the message says
        which.
      ValueError: an operator has `implementation="ptx"`, and no kernel can run; with the reason.
      HandlerMissingError: there is a GPU, and oxijax was installed without its launch handler.
      RuntimeError: JAX uses a GPU that the driver does not show, or that kernels do not run on.

    Example:
      >>> print(oxijax.resolve(jax.grad(loss), params, images))
    """
    check_callable("function", function)
    check_arguments("resolve", args)
    with noted_decisions() as decisions:
        # A function of its own, whose program JAX has not kept.
        jax.jit(lambda *args: function(*args)).lower(*args)
    return Resolved(tuple(ResolvedCall.of(decision) for decision in decisions))


@dataclasses.dataclass(frozen=True)
class ResolvedKernel:
    """A launch of a kernel.

    Attributes:
      kernel: name of the kernel.
      gpu: name of the GPU, or of the target that is emulated.
      config: its configuration, a frozen dataclass.
      shapes: the shapes of operands and results as they lie in the memory of one device, by name.
      plan: how its blocks share the work, a frozen dataclass.
      tuned: whether `oxijax.tune` has found the plan, or the kernel chooses it by itself.
    """

    kernel: str
    gpu: str
    config: Any
    shapes: Mapping[str, tuple[int, ...]]
    plan: Any
    tuned: bool

    @classmethod
    def of(cls, launch: Launch) -> "ResolvedKernel":
        """The launch on JAX's default device, or on the GPU that is emulated."""
        gpu, target = _gpu()
        call = KernelCall(gpu, target, registered(launch.kernel), launch.config, launch.shapes)
        plan, instance = tuned_plans.find(call), call.instance
        return cls(
            kernel=launch.kernel,
            gpu=gpu,
            config=launch.config,
            shapes=dict(instance.shapes),
            plan=instance.plan if plan is None else plan,
            tuned=plan is not None,
        )

    def __str__(self) -> str:
        arrays = ", ".join(f"{name}{list(shape)}" for name, shape in self.shapes.items())
        chosen = "tuned" if self.tuned else "the kernel's own choice"
        plan = plan_fields(self.plan)
        return f"{self.kernel} on {self.gpu}: {arrays}\n    plan, {chosen}: {plan}"


@dataclasses.dataclass(frozen=True)
class ResolvedCall:
    """What a call of an operator takes.

    Attributes:
      operation: the operator, or the gradient of one.
      implementation: "ptx" where it launches kernels, "xla" where XLA has a program for it.
      reason: why it launches none, as the end of a sentence; None where it does.
      kernels: its launches.
    """

    operation: str
    implementation: str
    reason: str | None
    kernels: tuple[ResolvedKernel, ...]

    @classmethod
    def of(cls, decision: Decision) -> "ResolvedCall":
        """What a lowering has decided."""
        takes_ptx = decision.takes_ptx and decision.reason is None
        kernels = tuple(map(ResolvedKernel.of, decision.launches))
        return cls(decision.operation, "ptx" if takes_ptx else "xla", decision.reason, kernels)

    def __str__(self) -> str:
        if self.implementation == "xla":
            return f"{self.operation}: XLA's program, since {self.reason}"
        count = len(self.kernels)
        lines = [f"{self.operation}: {count} {'launch' if count == 1 else 'launches'} of kernels"]
        return "\n  ".join([*lines, *map(str, self.kernels)])


@dataclasses.dataclass(frozen=True, repr=False)
class Resolved:
    """What `oxijax.resolve` has found; printed, it is a table.

    Attributes:
      calls: the calls of oxijax's operators, and of their gradients.
    """

    calls: tuple[ResolvedCall, ...]

    def __iter__(self) -> Iterator[ResolvedCall]:
        return iter(self.calls)

    def __len__(self) -> int:
        return len(self.calls)

    def __getitem__(self, index: int) -> ResolvedCall:
        return self.calls[index]

    def __repr__(self) -> str:
        return "\n".join(map(str, self.calls)) or "no operators of oxijax"


def _gpu() -> tuple[str, Target]:
    """The name and the target of the GPU that kernels are launched on."""
    if (emulated := emulation.value) is not None:
        return emulated_gpu(emulated.target), TARGETS[emulated.target]
    driver = _driver.driver()
    ordinal = jax.devices()[0].local_hardware_id or 0
    return driver.devices[ordinal].name, driver.target(ordinal)
