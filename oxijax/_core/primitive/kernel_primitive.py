"""One description of a kernel makes a JAX primitive with all of its rules.

A kernel family describes each of its kernels once: operands and results by named
dimensions, the functions that complete sizes, the ways to absorb a vmapped axis, and a
reference in pure JAX. From that `KernelPrimitive` derives abstract evaluation, eager
evaluation, lowering, batching and differentiation.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from oxijax._core import compat as _compat
from oxijax._core.arguments.checks import (
    PTX,
    batch_groups,
    is_known,
    requires_ptx,
    shown,
    takes_ptx,
)
from oxijax._core.arguments.precision import usual_promotion
from oxijax._core.calls.decisions import deciding
from oxijax._core.config import config as settings
from oxijax._core.config import is_deterministic
from oxijax._core.launch import VERSION, emulation, has_handler
from oxijax._core.primitive import sharding
from oxijax._core.primitive.fold import Dims, Fold, split
from oxijax._core.primitive.gradients import Product, tangent
from oxijax._version import __version__

__all__ = ["Fold", "KernelPrimitive", "Product", "Result", "map_present"]

# Hashable and static; each family has its own frozen dataclass. An attribute `implementation` of it
# says which programs may run, see `oxijax._core.arguments.checks.Implementation`.
Config = Any


@dataclasses.dataclass(frozen=True)
class Result:
    """A result of a kernel.

    Attributes:
      dims: names of its dimensions, for example "n p q o".
      like: the operand whose dtype it has. Where that operand is absent, so is the result.
    """

    dims: str
    like: str


class KernelPrimitive:
    """A kernel as a JAX primitive: called with a configuration and its operands.

    Operands may be None where the kernel can do without them; results that are `like` an
    absent operand are None.

    Their dtypes are for the caller to check. The reference takes any, and what a kernel takes is
    known only inside of `cuda`, which may convert them first, and which no CPU runs.

    Args:
      name: name of the primitive in jaxprs and in HLO metadata.
      operands: dimensions of each operand, by its name, in order of the call. One with a
        question mark, as in "g? m k", may be 1 where other operands have more: the operand is
        shared along it.
      results: the results, by name, in order.
      sizes: completes the sizes of dimensions that no operand has: called with the
        configuration and the sizes known from the operands, returns all.
      folds: how a vmapped axis is absorbed: by the one that repeats the fewest operands, the
        first of those.
      reference: the kernel in pure JAX: called with the configuration and the operands,
        returns the results as a tuple, in any floating dtypes. It is the lowering of every
        platform that has no kernel, and what the primitive is differentiated through unless it is
        a `product`.
      product: how to differentiate a product of operands, in every mode and order.
      batch: the leading dimension over which the reference is independent, but for results
        without it, which are sums; empty where XLA splits the reference without being told.
      parallel: called with the configuration and the names of the operands that are present,
        returns the dimensions along which a call may be split over devices; results that lack
        one of them are then summed.
      cuda: the kernel on a GPU, called and returning likewise: a function of arrays that calls
        `oxijax.extend.call`. None where there is no kernel: the reference is lowered then.
    """

    def __init__(
        self,
        name: str,
        *,
        operands: Mapping[str, str],
        results: Mapping[str, Result],
        sizes: Callable[[Config, dict[str, int]], dict[str, int]],
        folds: Sequence[Fold],
        reference: Callable[..., tuple[jax.Array | None, ...]],
        product: Product | None = None,
        batch: str = "",
        parallel: Callable[[Config, Sequence[str]], str] = lambda config, operands: "",
        cuda: Callable[..., tuple[jax.Array | None, ...]] | None = None,
    ):
        self.name = name
        self.operands: dict[str, Dims] = {key: Dims.parse(dims) for key, dims in operands.items()}
        self.results: dict[str, Result] = dict(results)
        self.sizes = sizes
        self.folds = folds
        self.reference = reference
        self.batch = batch
        self.parallel = parallel
        self.parts: Sequence[KernelPrimitive] = ()  # `define_parts` has its own
        self._result_dims = {key: Dims.parse(result.dims) for key, result in results.items()}
        self._check_description()

        primitive = Primitive(name)
        self.primitive: Primitive = primitive
        primitive.multiple_results = True
        primitive.def_impl(functools.partial(_compat.apply_primitive, primitive))
        primitive.def_abstract_eval(self._abstract_eval)
        self.cuda = cuda
        for platform, has_gpu in (
            (None, lambda: False),
            ("cuda", lambda: True),
            ("cpu", lambda: emulation.value is not None),
        ):
            lower = functools.partial(self._lower, has_gpu=has_gpu)
            mlir.register_lowering(primitive, lower, platform=platform)
        batching.primitive_batchers[primitive] = self._batch
        if product is None:
            ad.primitive_jvps[primitive] = self._jvp
            ad.primitive_transposes[primitive] = self._transpose_of_reference
        else:
            product.define(self)

    def _check_description(self) -> None:
        for result, like in ((key, result.like) for key, result in self.results.items()):
            if like not in self.operands:  # the result would always be absent
                raise ValueError(
                    f"{self.name}: result {result} must be like one of the operands "
                    f"{', '.join(self.operands)}, got like={shown(like)}"
                )
        if isinstance(self.folds, str) or not all(isinstance(fold, Fold) for fold in self.folds):
            raise TypeError(
                f"{self.name}: folds must be a sequence of Fold, got {shown(self.folds)}"
            )
        if not callable(self.parallel):
            raise TypeError(
                f"{self.name}: parallel must be a function of the configuration and the operands' "
                f"names, got {shown(self.parallel)}"
            )

    def __call__(self, config: Config, *operands: jax.Array | None) -> tuple[jax.Array | None, ...]:
        return self._on_present(self.bind, config, operands)

    def call_reference(
        self, config: Config, *operands: jax.Array | None
    ) -> tuple[jax.Array | None, ...]:
        """The reference's results, as a part of the program that is traced, without the primitive.

        They are differentiated as whatever is written in jax.numpy.
        """
        return self._on_present(self._trace_reference, config, operands)

    def _on_present(self, function: Callable[..., Sequence[jax.Array]], config, operands):
        self._check_operands(operands)
        present = tuple(operand is not None for operand in operands)
        arrays = [operand for operand in operands if operand is not None]
        outs = iter(function(*arrays, config=config, present=present))
        present_results = self.present_results(present)
        return tuple(next(outs) if key in present_results else None for key in self.results)

    def _check_operands(self, operands: Sequence[Any]) -> None:
        if len(operands) != len(self.operands):
            raise TypeError(
                f"{self.name} takes {len(self.operands)} operands, {', '.join(self.operands)} "
                f"(None for one that is absent), got {len(operands)}"
            )
        for (key, dims), operand in zip(self.operands.items(), operands, strict=True):
            shape = getattr(operand, "shape", None)
            if shape is not None and len(shape) != len(dims.names):
                raise ValueError(
                    f"{self.name}: {key} must have the dimensions {list(dims.names)}, got shape "
                    f"{shape}"
                )

    def _trace_reference(self, *arrays, config: Config, present: Sequence[bool]):
        def on_parts(*parts: jax.Array, config: Config) -> list[jax.Array]:
            return self._call(self.reference, parts, config, present)

        names = self.present_operands(present)
        return self._on_shards(on_parts, names, arrays, config, present)

    def bind(self, *arrays: Any, config: Config, present: Sequence[bool]) -> Sequence[jax.Array]:
        """Binds the primitive, once on each device where operands are sharded explicitly."""
        names = self.present_operands(present)

        def bind(*parts: jax.Array, config: Config) -> Sequence[jax.Array]:
            config = self.describe(config, names, parts)
            return self.primitive.bind(*parts, config=config, present=present)

        return self._on_shards(bind, names, arrays, config, present)

    def describe(self, config: Config, names: Sequence[str], arrays: Sequence[Any]) -> Config:
        """The configuration of a call of these operands, from that of a call like it."""
        return config

    def _call(
        self, function: Callable, arrays: Sequence[Any], config: Config, present: Sequence[bool]
    ) -> list[jax.Array]:
        """Calls a function of configuration and operands with the operands that are present."""
        config = self.describe(config, self.present_operands(present), arrays)
        operands = iter(arrays)
        results = function(
            config, *(next(operands) if is_present else None for is_present in present)
        )
        return [result for result in results if result is not None]

    def _lowering(self, function: Callable, expected: Sequence[Any]):
        @usual_promotion()
        def on_arrays(*arrays: jax.Array, config: Config, present: Sequence[bool]):
            with jax.named_scope(self.name):  # so that profiles know each operation by its kernel
                results = self._call(function, arrays, config, present)
            self._check_shapes(results, expected)
            return results

        return mlir.lower_fun(on_arrays, multiple_results=True)

    def _check_shapes(self, results: Sequence[Any], expected: Sequence[Any]) -> None:
        """Raises ValueError unless results have the dtypes and shapes of abstract evaluation."""
        found, wanted = ([(r.dtype.name, *r.shape) for r in each] for each in (results, expected))
        if [*map(len, found)] != [*map(len, wanted)] or any(
            # A size that is not known yet may be written in several ways.
            size != other and (isinstance(size, str) or is_known(size, other))
            for ours, theirs in zip(found, wanted, strict=True)
            for size, other in zip(ours, theirs, strict=True)
        ):
            raise ValueError(
                f"{self.name}: its reference, or its function for GPUs, must return arrays of "
                f"these dtypes and sizes: {wanted}; got {found}"
            )

    def _on_shards(
        self,
        bind: Callable[..., Sequence[jax.Array]],
        names: Sequence[str],
        arrays: Sequence[jax.Array],
        config: Config,
        present: Sequence[bool],
    ) -> Sequence[jax.Array]:
        """An operation like the primitive, once on each device where arrays are sharded explicitly.

        Args:
          bind: called with parts of the arrays and the configuration for them, `config`.
          names: for each array, the operand whose dimensions it has.
          arrays: operands, or their tangents.
          config: the primitive's configuration.
          present: whether each operand of the primitive is.
        """
        if not any(any(jax.typeof(array).sharding.spec) for array in arrays):
            return bind(*arrays, config=config)
        call = self._whole_call(config, present, names)
        return sharding.on_shards(bind, self.name, arrays, call)

    def _whole_call(
        self, config: Config, present: Sequence[bool], names: Sequence[str]
    ) -> sharding.SplitCall:
        """The call, not split, on arrays with the dimensions of the operands of these names."""
        return sharding.SplitCall(
            config,
            names,
            [self.operands[name] for name in names],
            [self._result_dims[name] for name in self.present_results(present)],
            self.parallel(config, self.present_operands(present)).split(),
            self.folds,
        )

    def present_operands(self, present: Sequence[bool]) -> list[str]:
        return [key for key, is_present in zip(self.operands, present, strict=True) if is_present]

    def present_results(self, present: Sequence[bool]) -> list[str]:
        names = self.present_operands(present)
        return [key for key, result in self.results.items() if result.like in names]

    def _abstract_eval(self, *avals, config: Config, present: Sequence[bool]):
        _compat.check_varying(self.name, *avals)
        operands = dict(zip(self.present_operands(present), avals, strict=True))
        known = self._parse_sizes({key: aval.shape for key, aval in operands.items()})
        sizes = self.sizes(config, known)
        results = []
        for key in self.present_results(present):
            dims = self._result_dims[key].names
            if missing := [dim for dim in dims if dim not in sizes]:
                raise ValueError(
                    f"{self.name}: result {key} has the dimensions {[*dims]}, and sizes gives none "
                    f"for {', '.join(missing)}, which no operand has"
                )
            shape = tuple(sizes[dim] for dim in dims)
            results.append(operands[self.results[key].like].update(shape=shape, weak_type=False))
        return results

    def _parse_sizes(self, shapes: Mapping[str, Sequence[int]]) -> dict[str, int]:
        """The sizes of all dimensions that the operands with these shapes have."""
        sizes: dict[str, int] = {}
        ones: dict[str, int] = {}
        for key, shape in shapes.items():
            dims = self.operands[key]
            for dim, size in zip(dims.names, shape, strict=True):
                if size == 1 and dim in dims.shareable:
                    ones[dim] = 1
                elif sizes.setdefault(dim, size) != size:
                    raise ValueError(
                        f"{self.name}: {key} has {dim} = {size}, other operands {sizes[dim]}"
                    )
        return {**ones, **sizes}

    def _lower(self, ctx, *values, has_gpu: Callable[[], bool], config: Config, present):
        """Lowers the kernel or the reference, as the configuration asks for."""
        obstacle = None
        if self.cuda is None:
            obstacle = "it has no kernel"
        elif not has_gpu():
            obstacle = (
                "kernels need an NVIDIA GPU, and the program is lowered for "
                f"{' and '.join(_compat.platforms(ctx))}"
            )
        implementation = getattr(config, "implementation", None)
        # Without an alternative that was asked for, a missing handler is an error of its own.
        if obstacle is None and not requires_ptx(implementation or (PTX,)) and not has_handler():
            obstacle = "oxijax has no launch handler that works"
        takes = takes_ptx(implementation, self.name, obstacle)
        lower = self._lower_kernel if takes else self._lower_reference
        reason = None if takes else obstacle or "implementation='xla' was asked for"
        with deciding(self.name, takes_ptx=takes, reason=reason):
            return lower(ctx, *values, config=config, present=present)

    def _lower_kernel(self, ctx, *values, config: Config, present: Sequence[bool]):
        """Lowers the kernel: where XLA can ask how to split it over devices, so that it does."""
        names = self.present_operands(present)
        call = self._whole_call(config, present, names)
        mesh = _compat.auto_mesh(ctx)
        cuda = self.cuda
        assert cuda is not None
        if mesh is None or not call.parallel or any(0 in aval.shape for aval in ctx.avals_in):
            return self._lowering(cuda, ctx.avals_out)(ctx, *values, config=config, present=present)
        gpu, deterministic = emulation.value, is_deterministic()

        def bind(config: Config, *parts: jax.Array) -> list[jax.Array]:
            # XLA may ask when the program has left the context that it was lowered in.
            same_mode = settings.deterministic_mode(deterministic)
            with emulation(gpu), same_mode, usual_promotion(), jax.named_scope(self.name):
                return self._call(cuda, parts, config, present)

        # All that the parts depend on: a cache of programs knows what XLA asks for by this alone.
        key = f"{self.name} {present} {gpu} {deterministic} {VERSION} {__version__}"
        return sharding.lower_split(ctx, values, mesh, bind, key, call)

    def _lower_reference(self, ctx, *arrays, config: Config, present: Sequence[bool]):
        """Lowers the reference: where there are several devices, on groups of the batch.

        XLA gives groups to devices where an operation has a dimension that counts them, and gathers
        what works on all of the batch at once.
        """
        names = self.present_operands(present)
        sizes = {
            aval.shape[0]
            for name, aval in zip(names, ctx.avals_in, strict=True)
            if self.operands[name].names[0] == self.batch
        }
        groups = batch_groups(ctx, *sizes) if sizes else 1
        function = self._rounded_reference
        if groups > 1:
            function = functools.partial(self._reference_on_groups, groups)
        return self._lowering(function, ctx.avals_out)(ctx, *arrays, config=config, present=present)

    def _reference_on_groups(self, groups: int, config: Config, *operands: jax.Array | None):
        axes = [
            0 if operand is not None and dims.names[0] == self.batch else None
            for dims, operand in zip(self.operands.values(), operands, strict=True)
        ]
        parts = [
            operand if axis is None or operand is None else split(operand, 0, groups)
            for operand, axis in zip(operands, axes, strict=True)
        ]
        outs = jax.vmap(functools.partial(self.reference, config), axes)(*parts)
        merged = [
            out
            if out is None
            else out.reshape(-1, *out.shape[2:])
            if dims.names[0] == self.batch
            else out.sum(axis=0)
            for out, dims in zip(outs, self._result_dims.values(), strict=True)
        ]
        return self._rounded(merged, operands)

    def _rounded_reference(self, config: Config, *operands: jax.Array | None):
        results = self.reference(config, *operands)
        if not isinstance(results, tuple | list) or len(results) != len(self.results):
            got = f"{len(results)}" if isinstance(results, tuple | list) else type(results).__name__
            raise TypeError(
                f"{self.name}: its reference must return a tuple of {len(self.results)}, "
                f"{', '.join(self.results)}, got {got}"
            )
        return self._rounded(results, operands)

    def _rounded(self, results, operands) -> list[jax.Array | None]:
        """Results in the dtypes of the operands that they are like."""
        dtypes = {k: v.dtype for k, v in zip(self.operands, operands, strict=True) if v is not None}
        return [
            None if value is None else value.astype(dtypes[result.like])
            for value, result in zip(results, self.results.values(), strict=True)
        ]

    @usual_promotion()
    def _batch(self, arrays, axes, *, config: Config, present: Sequence[bool]):
        bind = functools.partial(self.bind, present=present)
        size = next(a.shape[axis] for a, axis in zip(arrays, axes, strict=True) if axis is not None)
        names = self.present_operands(present)
        shapes = [
            a.shape if axis is None else a.shape[:axis] + a.shape[axis + 1 :]
            for a, axis in zip(arrays, axes, strict=True)
        ]
        if size == 0:
            one = [
                jax.ShapeDtypeStruct(shape, a.dtype)
                for shape, a in zip(shapes, arrays, strict=True)
            ]
            outs = jax.eval_shape(functools.partial(bind, config=config), *one)
            return [jnp.zeros((0, *out.shape), out.dtype) for out in outs], [0] * len(outs)

        operands = [self.operands[name] for name in names]
        results = [self._result_dims[name] for name in self.present_results(present)]
        mapped = [dims for dims, axis in zip(operands, axes, strict=True) if axis is not None]
        sizes = self._parse_sizes(dict(zip(names, shapes, strict=True)))
        ways = [
            (fold, [fold.merge(*each, sizes) for each in zip(operands, shapes, axes, strict=True)])
            for fold in self.folds
            if fold.fits(config) and all(fold.has_place(dims) for dims in mapped + results)
        ]
        if not ways:
            vmapped = [name for name, axis in zip(names, axes, strict=True) if axis is not None]
            raise NotImplementedError(
                f"{self.name}: no fold absorbs a vmap over {', '.join(vmapped)}: expected one with "
                f"a dimension of each of them and of every result, got the folds "
                f"{[fold.dims for fold in self.folds if fold.fits(config)]}"
            )
        fold, merges = min(ways, key=lambda way: sum(merge.repeats for merge in way[1]))
        arrays = [merge(array, size) for merge, array in zip(merges, arrays, strict=True)]
        outs = bind(*arrays, config=fold.update(config, size))
        positions = [fold.position(dims) for dims in results]
        return [split(out, at, size) for out, at in zip(outs, positions, strict=True)], positions

    def defvjp(self, reverse: Callable[..., jax.Array]) -> None:
        """Has reverse mode take the gradients of a `jax.custom_vjp`.

        Args:
          reverse: the reverse mode of the one result: called with the configuration and the
            operands.
        """
        self.reverse = reverse
        ad.primitive_jvps[self.primitive] = self._jvp_of_custom_vjp

    def _jvp_of_custom_vjp(self, primals, tangents, *, config: Config, present: Sequence[bool]):
        (out,) = self.bind(*primals, config=config, present=present)
        return [out], [tangent(self, primals, tangents, out, config=config, present=present)]

    def _jvp(self, primals, tangents, *, config: Config, present: Sequence[bool]):
        outs = self.bind(*primals, config=config, present=present)
        return outs, self.reference_tangents(primals, tangents, config=config, present=present)

    def reference_tangents(
        self,
        primals: Sequence[Any],
        tangents: Sequence[Any],
        *,
        config: Config,
        present: Sequence[bool],
    ) -> Sequence[jax.Array]:
        """The tangents of the results, which are the reference's."""
        active = [i for i, tangent in enumerate(tangents) if type(tangent) is not ad.Zero]

        @usual_promotion()
        def on_parts(*parts: jax.Array, config: Config) -> Sequence[jax.Array]:
            primals = parts[: len(tangents)]
            reference = self._reference_of(active, primals, config, present)
            varying = [primals[i] for i in active]
            return jax.jvp(reference, varying, list(parts[len(tangents) :]))[1]

        names = self.present_operands(present)
        every = [*names, *(names[i] for i in active)]
        arrays = [*primals, *(tangents[i] for i in active)]
        return self._on_shards(on_parts, every, arrays, config, present)

    def define_transpose(
        self,
        gradient: Callable[[Config, dict[str, Any], str, jax.Array], jax.Array],
        linear: Callable[[Config, Sequence[str]], Sequence[str]],
    ) -> None:
        """Defines `jax.linear_transpose` of a primitive with one result.

        Args:
          gradient: called with the configuration, the operands by name (None for an absent one, and
            in place of the transposed one its shape and dtype), the name of the transposed one and
            the gradient of the result; returns the gradient of the transposed one.
          linear: called with the configuration and the names of the operands that are present,
            returns those in each of which the result is linear.
        """

        @usual_promotion()
        def transpose(cotangents, *operands, config: Config, present: Sequence[bool]):
            (cotangent,) = cotangents
            names = self.present_operands(present)
            values = {**dict.fromkeys(self.operands), **dict(zip(names, operands, strict=True))}
            transposed = [name for name in names if ad.is_undefined_primal(values[name])]
            if len(transposed) != 1 or transposed[0] not in linear(config, names):
                raise TypeError(
                    f"{self.name} is linear in one factor at a time and without a term, not in "
                    f"{' and '.join(transposed)} of {', '.join(names)}"
                )
            (name,) = transposed
            values[name] = values[name].aval
            if type(cotangent) is ad.Zero:
                found = ad.Zero(values[name])
            else:
                found = gradient(config, values, name, cotangent)
            return [found if other == name else None for other in names]

        ad.primitive_transposes[self.primitive] = transpose

    @usual_promotion()
    def _transpose_of_reference(self, cotangents, *operands, config: Config, present):
        """For `jax.linear_transpose` of a primitive that is itself a transpose."""
        transposed = [i for i, value in enumerate(operands) if ad.is_undefined_primal(value)]
        reference = self._reference_of(transposed, operands, config, present)
        transpose = jax.linear_transpose(reference, *(operands[i].aval for i in transposed))
        found = iter(transpose([ad.instantiate_zeros(each) for each in cotangents]))
        return [next(found) if i in transposed else None for i in range(len(operands))]

    def _reference_of(
        self,
        indices: Sequence[int],
        arrays: Sequence[Any],
        config: Config,
        present: Sequence[bool],
    ) -> Callable[..., list[jax.Array]]:
        """The reference as a function of the arrays at some indices; the others are constant."""

        def reference(*values: jax.Array) -> list[jax.Array]:
            merged = list(arrays)
            for i, value in zip(indices, values, strict=True):
                merged[i] = value
            return self._call(self._rounded_reference, merged, config, present)

        return reference


def map_present(
    function: Callable[..., Sequence[jax.Array]], *operands: jax.Array | None
) -> list[jax.Array | None]:
    """Calls a function of several arrays with those that are present, and puts its results there.

    Args:
      function: returns as many arrays as it is called with.
      *operands: None where one is absent, and so is its result.
    """
    results = iter(function(*(operand for operand in operands if operand is not None)))
    return [None if operand is None else next(results) for operand in operands]
