"""Declarations of operators: the arrays of their operations, and their static part.

An operator has a description, a frozen dataclass, which is a parameter of its JAX primitives, the
configuration of its kernels, and what a compiled program says of a launch. Its operations, such as
forward and the backward to each operand, name their arrays and the arrays' dimensions. Kernels and
primitives are both made from these.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

from ptx.isa.dtypes import DType

__all__ = ["Array", "Description", "In", "Operation", "Out", "Sizes"]

# Of dimensions, by name: ints, or symbolic dimensions while JAX traces a program.
Sizes = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Array:
    """A parameter that points to an array.

    Attributes:
      name: the name that callers, the PTX text and tests use.
      dims: the names of its dimensions in the caller's order, for example "n h w c", or a function
        of the configuration that returns them. A leading one with a question mark may be 1 where
        other arrays have more, or be left out.
      dtype: the type of an element; or the name of the configuration's field that holds it, where
        None is `float_type`; or a function of the configuration that returns it.
      layout: the order of the dimensions in memory, or a function of the configuration that returns
        it; None is the caller's order.
      flag: the field of the configuration that says whether the array is present; None where it
        always is.
      unless: the field of the configuration that says whether the array is absent, likewise.
    """

    name: str
    dims: str | Callable[[Any], str]
    dtype: DType | str | Callable[[Any], DType] = "float_type"
    layout: str | Callable[[Any], str] | None = None
    flag: str | None = None
    unless: str | None = None

    def is_present(self, config: Any) -> bool:
        return (self.flag is None or getattr(config, self.flag)) and not (
            self.unless is not None and getattr(config, self.unless)
        )

    def dtype_of(self, config: Any) -> DType:
        if isinstance(self.dtype, str):
            return getattr(config, self.dtype) or config.float_type
        return self.dtype if isinstance(self.dtype, DType) else self.dtype(config)

    def laid(self, layout: str | Callable[[Any], str]) -> Self:
        """The same array with its dimensions in another order in memory."""
        return dataclasses.replace(self, layout=layout)

    def dims_of(self, config: Any) -> tuple[str, ...]:
        """The names of the dimensions, in the caller's order."""
        return tuple(self.dims_text(config).replace("?", "").split())

    def layout_of(self, config: Any) -> tuple[str, ...]:
        """The names of the dimensions, in the order in which they lie in memory."""
        layout = self.layout(config) if callable(self.layout) else self.layout
        return self.dims_of(config) if layout is None else tuple(layout.split())

    def axes(self, config: Any) -> tuple[int, ...]:
        """For each dimension in memory, which dimension of the caller's array it is."""
        dims = self.dims_of(config)
        return tuple(dims.index(name) for name in self.layout_of(config))

    def shareable(self, config: Any) -> str | None:
        """The leading dimension that may be 1 or left out; None where there is none."""
        first = self.dims_text(config).partition(" ")[0]
        return first[:-1] if first.endswith("?") else None

    def dims_text(self, config: Any) -> str:
        """The names of the dimensions, with question marks."""
        return self.dims(config) if callable(self.dims) else self.dims


@dataclasses.dataclass(frozen=True)
class In(Array):
    """An operand, which the kernel only reads."""


@dataclasses.dataclass(frozen=True)
class Out(Array):
    """A result, each element of which the kernel writes.

    Attributes:
      initial: the name of an operand of the same shape and type, whose memory becomes the
        result's: the kernel finds its values in the result. None where the result holds nothing.
      initial_flag: the field of the configuration that says whether `initial` is present; None
        where it always is.
    """

    initial: str | None = None
    initial_flag: str | None = None

    def has_initial(self, config: Any) -> bool:
        if self.initial is None or not self.is_present(config):
            return False
        return self.initial_flag is None or getattr(config, self.initial_flag)


@dataclasses.dataclass(frozen=True)
class Description:
    """Base class of the descriptions of operators: what is static in a call.

    Fields that follow from the arrays of a call are filled from them, by `Operation.describe`.
    """

    def validate(self) -> None:
        """Raises ValueError that names the field at fault, if one is."""

    @property
    def known_sizes(self) -> dict[str, Any]:
        """The sizes of dimensions that follow from the description alone."""
        return {}

    def complete(self, sizes: Sizes) -> dict[str, Any]:
        """The sizes of all dimensions that follow from those that are given."""
        return {**sizes, **self.known_sizes}

    def with_sizes(self, sizes: Sizes) -> Self:
        """The description of a call whose arrays have these sizes."""
        return self

    def products(self, sizes: Sizes) -> Any:
        """Multiplications of a call of these sizes, for XLA's schedule; 0 where they are few."""
        return 0


@dataclasses.dataclass(frozen=True, eq=False)
class Operation:
    """One operation of an operator: a primitive in JAX, which kernels implement.

    Attributes:
      name: the primitive's name.
      operands: the arrays that it reads, in the order of the call.
      results: the arrays that it returns. Each has the dtype of an operand.
      unused: fields of the description that mean nothing here. They have their defaults, so that
        calls which differ in nothing else share a kernel.
    """

    name: str
    operands: tuple[In, ...]
    results: tuple[Out, ...]
    unused: tuple[str, ...] = ()

    def like(self, result: Array) -> str:
        """The name of the operand whose dtype a result has, and with which it is absent."""
        rule = (result.dtype, result.flag, result.unless)
        for operand in self.operands:
            if (operand.dtype, operand.flag, operand.unless) == rule:
                return operand.name
        raise ValueError(f"{self.name}: no operand has the dtype rule of {result.name}, {rule}")

    def sizes(self, description: Any, shapes: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
        """The sizes of the dimensions that operands with these shapes have, by name."""
        arrays = {operand.name: operand for operand in self.operands}
        return {
            dim: size
            for name, shape in shapes.items()
            for dim, size in zip(arrays[name].dims_of(description), shape, strict=True)
        }

    def describe(
        self,
        description: Any,
        shapes: Mapping[str, Sequence[Any]],
        dtypes: Mapping[str, DType],
    ) -> Any:
        """The description of a call, from one of a call like it and from its operands.

        Args:
          description: says what does not follow from the operands.
          shapes: shapes of the operands that are present, by name.
          dtypes: dtypes of the same operands.
        """
        defaults = {field.name: field.default for field in dataclasses.fields(description)}
        fields: dict[str, Any] = {name: defaults[name] for name in self.unused}
        types: dict[str, DType] = {}
        for operand in self.operands:
            if operand.flag is not None:
                fields[operand.flag] = operand.name in shapes
            if isinstance(operand.dtype, str) and operand.dtype in defaults:
                fields.setdefault(operand.dtype, defaults[operand.dtype])
                if operand.name in dtypes:
                    types.setdefault(operand.dtype, dtypes[operand.name])
        described = description.with_sizes(self.sizes(description, shapes))
        return dataclasses.replace(described, **{**fields, **types})
