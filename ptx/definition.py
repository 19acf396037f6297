"""A kernel as one value, whose parameters are named once, and everything else is read off them.

From a `KernelDefinition` come the parameters of the PTX text, the launch with its dynamic shared
memory, the call from JAX, the documentation of the parameters, the bytes that a launch moves, and
the calls that tests make.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from ptx.builder import Kernel, provenance
from ptx.builder.provenance import Origin
from ptx.checks import Named, Parameters, check_grid, check_plan, check_text, parse_u32
from ptx.isa.dtypes import u32
from ptx.isa.targets import TARGETS, Target, as_target
from ptx.launch import BufferAddress, Launch
from ptx.operator import Array, Description, In, Out, Sizes

__all__ = [
    "Array",
    "In",
    "Instance",
    "KernelDefinition",
    "Out",
    "Plan",
    "PlanLike",
    "Shapes",
    "Size",
    "Sizes",
    "Written",
    "clear_texts",
]

Config = TypeVar("Config")
Shapes = Sequence[tuple[int, ...]]  # of a call's operands, then of its results


class PlanLike(Protocol):
    """The fields of every plan.

    Attributes:
      threads: threads of a block.
      min_blocks: blocks that fit on an SM, which limits registers; None for no limit.
    """

    @property
    def threads(self) -> int: ...
    @property
    def min_blocks(self) -> int | None: ...


@dataclasses.dataclass(frozen=True)
class Plan:
    """The plan of a kernel that chooses nothing but the size of its blocks: see `PlanLike`."""

    threads: int = 128
    min_blocks: int | None = None


@dataclasses.dataclass(frozen=True)
class Size:
    """A parameter that is a number, a u32, known when the kernel is launched; or several of them.

    Attributes:
      name: the name in the PTX text.
      value: the number that a launch passes, of an `Instance`.
      present: whether the kernel of a configuration and a plan has it.
      count: how many numbers there are, of a configuration, where `value` returns a sequence: they
        are called name_0, name_1 and so on, and `body` gets a list. None is one number.
    """

    name: str
    value: Callable[[Instance], Any]
    present: Callable[[Any, Any], bool] = lambda config, plan: True
    count: Callable[[Any], int] | None = None

    def names(self, config: Any) -> list[str]:
        """The name of each number."""
        if self.count is None:
            return [self.name]
        return [f"{self.name}_{i}" for i in range(self.count(config))]


@dataclasses.dataclass(frozen=True)
class Instance:
    """A kernel with all that is known when it is launched.

    Attributes:
      config: the configuration.
      target: the GPU.
      plan: the plan that was chosen for them and for the sizes.
      sizes: the size of every dimension of the arrays, by name.
      shapes: the shape of every array that is present, by name.
    """

    config: Any
    target: Target
    plan: Any
    sizes: Sizes
    shapes: Mapping[str, tuple[int, ...]]


@dataclasses.dataclass(frozen=True)
class Written:
    """A PTX text.

    Attributes:
      text: the PTX module.
      dynamic_shared: bytes of dynamic shared memory that a block of it needs.
    """

    text: str
    dynamic_shared: int


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class KernelDefinition(Generic[Config]):
    """A kernel, whole.

    Attributes:
      name: unique among the registered ones.
      configs: named configurations, those that are assembled and tested: frozen dataclasses of
        numbers, strings, tuples and dtypes, of one class.
      parameters: arrays and sizes, in the order of the PTX text. Operands of a call are the `In`
        that are present, in their order, then the initial values of results.
      body: writes the kernel: called with the builder, the configuration, the plan, and a namespace
        with a pointer or value for each parameter's name, None for one that is absent. A text that
        it returns takes the place of what the builder has.
      grid: the blocks in x, y and z of a launch.
      plan: chooses what the configuration leaves open, for a target and for the sizes of a launch;
        without sizes for a large one. Everything that the text depends on is in its result.
      entry: the name of the PTX entry; None is the kernel's name.
      known: sizes of dimensions that follow from the configuration, besides the `known_sizes` of
        a `ptx.operator.Description`.
      check: raises ValueError for sizes that the kernel cannot count.
      launch_sizes: for configurations of `configs` that stand for launches of some sizes, these:
        the plan depends on them.
      needs: the lowest target that has the kernel's instructions.
      text_config: (configuration) -> the one that the text is written of, without what launches
        pass as a `Size`: configurations that do not differ in it share a text.
    """

    name: str
    configs: Mapping[str, Config]
    parameters: tuple[In | Out | Size, ...]
    body: Callable[[Kernel, Config, Any, Any], str | None]
    grid: Callable[[Instance], tuple[int, int, int]]
    plan: Callable[[Config, Target, Sizes | None], PlanLike] = lambda config, target, sizes: Plan()
    entry: Callable[[Config, Any], str] | None = None
    known: Callable[[Config], Sizes] = lambda config: {}
    check: Callable[[Instance], None] = lambda instance: None
    launch_sizes: Mapping[str, Sizes] = dataclasses.field(default_factory=dict)
    needs: str = "sm_75"
    text_config: Callable[[Any], Any] = lambda config: config

    def __post_init__(self):
        if not self.configs:
            raise ValueError(f"kernel {self.name!r} needs at least one configuration")
        for parameter in self.parameters:
            if not isinstance(parameter, In | Out | Size):
                raise TypeError(
                    f"parameters of kernel {self.name!r} must be In, Out or Size, got {parameter!r}"
                )
        names = [parameter.name for parameter in self.parameters]
        if len(set(names)) < len(names):
            raise ValueError(f"parameters of kernel {self.name!r} must differ in name, got {names}")
        if self.needs not in TARGETS:
            raise ValueError(f"needs of kernel {self.name!r} must be a target, got {self.needs!r}")
        if unknown := sorted(self.launch_sizes.keys() - self.configs.keys()):
            raise ValueError(
                f"launch_sizes of kernel {self.name!r} has no configuration for {unknown}"
            )
        object.__setattr__(self, "configs", types.MappingProxyType(dict(self.configs)))

    # ---- what there is

    def config(self, name: str) -> Config:
        """The configuration called `name`; ValueError, which lists all, if there is none."""
        if name not in self.configs:
            names = ", ".join(self.configs)
            raise ValueError(f"kernel {self.name} has the configurations {names}, not {name!r}")
        return self.configs[name]

    def operands(self, config: Config) -> Mapping[str, Array]:
        """What a call passes, by name and in order: operands, then initial values of results."""
        read = {p.name: p for p in self.parameters if isinstance(p, In) and p.is_present(config)}
        results = self.results(config).values()
        return read | {p.initial: p for p in results if p.initial and p.has_initial(config)}

    def results(self, config: Config) -> Mapping[str, Out]:
        """What a call returns, by name and in order."""
        outs = [p for p in self.parameters if isinstance(p, Out)]
        return {p.name: p for p in outs if p.is_present(config)}

    def aliases(self, config: Config) -> dict[int, int]:
        """For operands whose memory becomes a result's: their index, and that of the result."""
        operands = list(self.operands(config))
        return {
            operands.index(result.initial): index
            for index, result in enumerate(self.results(config).values())
            if result.initial and result.has_initial(config)
        }

    def with_operands(self, config: Config, names: Sequence[str]) -> Config:
        """The configuration of a call that passes these operands.

        Raises:
          TypeError: an operand that the kernel does not have, or one that it needs is missing.
        """
        flags: dict[str, bool] = {}
        for parameter in self.parameters:
            if isinstance(parameter, In) and parameter.flag:
                flags[parameter.flag] = parameter.name in names
            elif isinstance(parameter, Out) and parameter.initial_flag:
                flags[parameter.initial_flag] = parameter.initial in names
        config = dataclasses.replace(config, **flags)  # pyright: ignore[reportArgumentType]
        expected = self.operands(config)
        if set(expected) != set(names):
            raise TypeError(
                f"kernel {self.name} takes {', '.join(expected)}, and was given {', '.join(names)}"
            )
        return config

    def sizes(self, config: Config, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
        """The sizes of all dimensions, from the shapes of arrays in memory, by name.

        Raises:
          ValueError: arrays that disagree with each other or with the configuration.
        """
        sizes, ones = self.known_sizes(config), {}
        operands, arrays = self.operands(config), self._arrays(config)
        for name, shape in shapes.items():
            dims, shared = arrays[name].layout_of(config), arrays[name].shareable(config)
            if shared is not None and len(shape) == len(dims) - 1:
                shape = (1, *shape)
            if isinstance(arrays[name], Out) and name not in operands:
                shared = None  # every element of a result is written
            if len(shape) != len(dims):
                raise ValueError(f"kernel {self.name}: {name} must be {list(dims)}, got {shape}")
            for dim, size in zip(dims, shape, strict=True):
                if size == 1 and dim == shared:
                    ones[dim] = 1
                elif sizes.setdefault(dim, size) != size:
                    raise ValueError(
                        f"kernel {self.name}: {name} must have {dim} = {sizes[dim]}, got {shape} "
                        f"for {list(dims)}"
                    )
        return {**ones, **sizes}

    def known_sizes(self, config: Config) -> dict[str, int]:
        """The sizes of dimensions that follow from a configuration."""
        known = config.known_sizes if isinstance(config, Description) else {}
        return {**known, **self.known(config)}

    def shapes(self, config: Config, sizes: Sizes) -> dict[str, tuple[int, ...]]:
        """The shape in memory of every array of a call, by name: operands, then results.

        Raises:
          ValueError: the size of a dimension is missing.
        """
        sizes = {**self.known_sizes(config), **sizes}
        if isinstance(config, Description):
            sizes = config.complete(sizes)
        arrays = self._arrays(config)
        for name, array in arrays.items():
            if missing := [dim for dim in array.layout_of(config) if dim not in sizes]:
                raise ValueError(
                    f"kernel {self.name}: sizes must have {', '.join(missing)}, of {name} "
                    f"{list(array.layout_of(config))}, got {dict(sizes)}"
                )
        return {
            name: tuple(sizes[dim] for dim in array.layout_of(config))
            for name, array in arrays.items()
        }

    def moved_bytes(self, config: Config, shapes: Mapping[str, tuple[int, ...]]) -> int:
        """Bytes of all arrays of a call: what a launch moves if it touches each element once."""
        return sum(
            math.prod(shapes[name]) * array.dtype_of(config).bytes
            for name, array in self._arrays(config).items()
        )

    def present_parameters(self, config: Config, plan: Any) -> list[In | Out | Size]:
        """The parameters of a text, in order."""
        return [
            p
            for p in self.parameters
            if (p.present(config, plan) if isinstance(p, Size) else p.is_present(config))
        ]

    def signature(self, config: Config, plan: Any) -> list[str]:
        """A line for each parameter of the text: its type, and what it is."""
        lines = []
        for parameter in self.present_parameters(config, plan):
            if isinstance(parameter, Size):
                lines += [f"{name}: u32" for name in parameter.names(config)]
            else:
                dims = ", ".join(parameter.layout_of(config))
                role = "read" if isinstance(parameter, In) else "written"
                if isinstance(parameter, Out) and parameter.has_initial(config):
                    role = f"holds {parameter.initial}, then written"
                lines.append(f"{parameter.name}: {parameter.dtype_of(config)} [{dims}], {role}")
        return lines

    # ---- the text and the launch

    def write(
        self,
        config: Config,
        target: Target | str,
        sizes: Sizes | None = None,
        *,
        plan: PlanLike | None = None,
    ) -> Written:
        """The PTX of a configuration.

        Args:
          config: the configuration.
          target: the GPU.
          sizes: sizes of the launch; None is a large one.
          plan: instead of the one that the kernel would choose.

        Raises:
          UnsupportedError: the target lacks an instruction.
          ValueError: a configuration that makes no sense, or that unrolls more lines than a kernel
            may have, or takes longer than it may.
        """
        target = as_target(target)
        self.validate(config)
        return _written(self, config, target, self._checked_plan(config, target, sizes, plan))

    def write_named(self, name: str, target: Target | str) -> Written:
        """The PTX of the configuration called `name`; raises as `write` and `config` do."""
        return self.write(self.config(name), target, self.launch_sizes.get(name))

    def instance(
        self,
        config: Config,
        target: Target | str,
        shapes: Shapes,
        *,
        plan: PlanLike | None = None,
    ) -> Instance:
        """What is known of a call, from the shapes in memory of its operands, then its results.

        Raises:
          ValueError: shapes that do not fit each other, or that the kernel cannot count.
        """
        target = as_target(target)
        self.validate(config)
        operands, results = self.operands(config), self.results(config)
        if len(shapes) != len(operands) + len(results):
            raise ValueError(
                f"kernel {self.name} has the operands {', '.join(operands)} and the results "
                f"{', '.join(results)}, and a call has {len(shapes)} buffers"
            )
        named = dict(zip([*operands, *results], shapes, strict=True))
        sizes = Named(self.name, "dimension", self.sizes(config, named))
        plan = self._checked_plan(config, target, sizes, plan)
        instance = Instance(config, target, plan, sizes, Named(self.name, "array", named))
        self.check(instance)
        return instance

    def launch(
        self,
        config: Config,
        target: Target | str,
        shapes: Shapes,
        *,
        plan: PlanLike | None = None,
    ) -> Launch:
        """The launch for arrays of these shapes, as they lie in memory: operands, then results.

        Args:
          config: the configuration.
          target: the GPU.
          shapes: shapes of the part of a call that runs on one device.
          plan: instead of the one that the kernel would choose.

        Raises:
          UnsupportedError: the target lacks an instruction.
          ValueError: shapes that do not fit each other, or that the kernel cannot count.
        """
        instance = self.instance(config, target, shapes, plan=plan)
        grid = self.grid(instance)
        check_grid(self.name, grid)
        written = _written(self, config, instance.target, instance.plan)
        buffers = [*self.operands(config), *self.results(config)]
        arguments: list[BufferAddress | np.generic] = []
        for parameter in self.present_parameters(config, instance.plan):
            if not isinstance(parameter, Size):
                arguments.append(BufferAddress(buffers.index(parameter.name)))
            else:
                names, value = parameter.names(config), parameter.value(instance)
                for name, number in zip(
                    names, [value] if parameter.count is None else value, strict=True
                ):
                    arguments.append(np.uint32(parse_u32(self.name, name, number)))
        block = (instance.plan.threads, 1, 1)
        return Launch(grid, block, tuple(arguments), written.text, written.dynamic_shared)

    def origin(
        self,
        config: Config,
        target: Target | str,
        shapes: Shapes,
        line: int,
        *,
        plan: PlanLike | None = None,
    ) -> Origin | None:
        """The place in Python that wrote a line, from 1, of the text of a `launch`.

        The text is written again for this answer, which is None for a line without an instruction
        of the builder.
        """
        instance = self.instance(config, target, shapes, plan=plan)
        with provenance.recorded() as found:
            written = _written(self, config, instance.target, instance.plan)
        return found.get(written.text, {}).get(line)

    def validate(self, config: Config) -> None:
        """Raises ValueError, which names the field, for a configuration that makes no sense."""
        validate = getattr(config, "validate", None)
        if validate is not None:
            validate()

    def _arrays(self, config: Config) -> dict[str, Array]:
        """The operands and the results, by name and in order."""
        return {**self.operands(config), **self.results(config)}

    def _checked_plan(
        self, config: Config, target: Target, sizes: Sizes | None, plan: PlanLike | None
    ) -> PlanLike:
        """The plan that is given, else the kernel's own."""
        plan = self.plan(config, target, sizes) if plan is None else plan
        check_plan(self.name, plan, target)
        return plan


def _written(kernel: KernelDefinition, config: Any, target: Target, plan: Any) -> Written:
    write = _write.__wrapped__ if provenance.is_recorded() else _write
    return write(kernel, kernel.text_config(config), target, plan)


@functools.lru_cache(maxsize=1024)
def _write(kernel: KernelDefinition, config: Any, target: Target, plan: Any) -> Written:
    entry = kernel.name if kernel.entry is None else kernel.entry(config, plan)
    k = Kernel(entry, target, block=plan.threads, min_blocks=plan.min_blocks)
    k.limit_time(config)
    parameters = Parameters(**dict.fromkeys(p.name for p in kernel.parameters))
    for parameter in kernel.present_parameters(config, plan):
        if isinstance(parameter, Size):
            value: Any = [k.param(name, u32) for name in parameter.names(config)]
            value = value[0] if parameter.count is None else value
        else:
            readonly = isinstance(parameter, In)
            value = k.pointer(parameter.name, parameter.dtype_of(config), readonly=readonly)
        setattr(parameters, parameter.name, value)
    text = kernel.body(k, config, plan, parameters)
    check_text(kernel.name, text)
    if text is None:
        text = k.text(kernel.signature(config, plan))
    return Written(text, k.dynamic_shared_bytes)


def clear_texts() -> None:
    """Frees the texts that are kept, the last 1,024 of this process: they are written again.

    For a process that writes ever new kernels, some 10 to 50 KB each. What has a text goes on.
    """
    _write.cache_clear()
