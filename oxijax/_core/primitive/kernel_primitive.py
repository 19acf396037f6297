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
from oxijax._core.arguments.implementation import PTX, requires_ptx, takes_ptx
from oxijax._core.arguments.precision import accumulator, usual_promotion
from oxijax._core.arguments.sizes import batch_groups
from oxijax._core.config import config as settings
from oxijax._core.config import is_deterministic
from oxijax._core.launch import VERSION, emulation, has_handler
from oxijax._core.primitive import modes, sharding
from oxijax._core.primitive.explicit import explicit_axes
from oxijax._core.primitive.fold import Dims, Fold, broadcast, split
from oxijax._core.primitive.validation import (
    check_description,
    check_linear,
    check_operands,
    check_results,
    check_shapes,
    check_sizes,
)
from oxijax._version import __version__

__all__ = ["Fold", "KernelPrimitive", "Product", "Result", "map_present"]

# Hashable and static; each family has its own frozen dataclass. An attribute `implementation` of it
# says which programs may run, see `oxijax._core.arguments.implementation`.
Config = Any

_CHANNELS = "channels"  # the name of all dimensions that a fold splits together


@dataclasses.dataclass(frozen=True)
class Result:
    """A result of a kernel.

    Attributes:
      dims: names of its dimensions, for example "n p q o".
      like: the operand whose dtype it has. Where that operand is absent, so is the result.
    """

    dims: str
    like: str


@dataclasses.dataclass(frozen=True)
class Product:
    """What makes a kernel's one result a product of its operands, plus perhaps one of them.

    Such a kernel needs no reference to be differentiated through: its tangents are its own
    products with tangents in a factor's place, and its gradients are those products' transposes.

    Attributes:
      transposes: for each factor a function that is called with the configuration, the
        operands (in the factor's place its shape and dtype) and the gradient of the result, and
        returns the factor's, as a tuple of one. Along dimensions that the factor is shared along
        it may be left to be summed.
      term: the operand that is added to the product, along the dimensions that it has.
      scale: the operand that the term is multiplied with, if present.
    """

    transposes: Mapping[str, Callable[..., tuple[jax.Array | None, ...]]]
    term: str | None = None
    scale: str | None = None


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
        likes = {key: result.like for key, result in self.results.items()}
        check_description(name, self.operands, likes, folds)

        primitive = Primitive(name)
        self.primitive: Primitive = primitive
        primitive.multiple_results = True
        primitive.def_impl(functools.partial(_compat.apply_primitive, primitive))
        primitive.def_abstract_eval(self._abstract_eval)
        self.cuda = cuda
        mlir.register_lowering(primitive, functools.partial(self._lower, has_gpu=lambda: False))
        lower_on_gpu = functools.partial(self._lower, has_gpu=lambda: True)
        mlir.register_lowering(primitive, lower_on_gpu, platform="cuda")
        lower_on_cpu = functools.partial(self._lower, has_gpu=lambda: emulation.value is not None)
        mlir.register_lowering(primitive, lower_on_cpu, platform="cpu")
        batching.primitive_batchers[primitive] = self._batch
        if product is None:
            ad.primitive_jvps[primitive] = self._jvp
            ad.primitive_transposes[primitive] = self._transpose_of_reference
        else:
            self.product = product
            ad.primitive_jvps[primitive] = self._jvp_of_product
            ad.primitive_transposes[primitive] = self._transpose

    def __call__(self, config: Config, *operands: jax.Array | None) -> tuple[jax.Array | None, ...]:
        return self._on_present(self._bind, config, operands)

    def call_reference(
        self, config: Config, *operands: jax.Array | None
    ) -> tuple[jax.Array | None, ...]:
        """The reference's results, as a part of the program that is traced, without the primitive.

        They are differentiated as whatever is written in jax.numpy.
        """
        return self._on_present(self._trace_reference, config, operands)

    def _on_present(self, function: Callable[..., Sequence[jax.Array]], config, operands):
        check_operands(self.name, self.operands, operands)
        present = tuple(operand is not None for operand in operands)
        arrays = [operand for operand in operands if operand is not None]
        outs = iter(function(*arrays, config=config, present=present))
        present_results = self._present_results(present)
        return tuple(next(outs) if key in present_results else None for key in self.results)

    def _trace_reference(self, *arrays, config: Config, present: Sequence[bool]):
        def on_parts(*parts: jax.Array, config: Config) -> list[jax.Array]:
            return self._call(self.reference, parts, config, present)

        names = self._present_operands(present)
        return self._on_shards(on_parts, names, arrays, config, present)

    def _bind(self, *arrays, config: Config, present: Sequence[bool]) -> Sequence[jax.Array]:
        """Binds the primitive, once on each device where operands are sharded explicitly."""
        names = self._present_operands(present)

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
        config = self.describe(config, self._present_operands(present), arrays)
        operands = iter(arrays)
        results = function(config, *(next(operands) if each else None for each in present))
        return [result for result in results if result is not None]

    def _lowering(self, function: Callable, expected: Sequence[Any]):
        @usual_promotion()
        def on_arrays(*arrays: jax.Array, config: Config, present: Sequence[bool]):
            with jax.named_scope(self.name):  # so that profiles know each operation by its kernel
                results = self._call(function, arrays, config, present)
            check_shapes(self.name, results, expected)
            return results

        return mlir.lower_fun(on_arrays, multiple_results=True)

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
        if not explicit_axes(arrays):
            return bind(*arrays, config=config)
        call = self._whole_call(config, present, names)
        shapes = [array.shape for array in arrays]
        call = self._part_of(call, names, shapes, sharding.explicit_parts(arrays)) or call
        bind = functools.partial(bind, config=call.config)
        return sharding.on_shards(bind, self.name, names, arrays, call)

    def _whole_call(
        self, config: Config, present: Sequence[bool], names: Sequence[str]
    ) -> sharding.Call:
        """The call, not split, on arrays with the dimensions of the operands of these names."""
        return sharding.Call(
            config,
            [self.operands[name] for name in names],
            [Dims.parse(result.dims) for result in self._present_results(present).values()],
            self.parallel(config, self._present_operands(present)).split(),
        )

    def _part_of(
        self,
        call: sharding.Call,
        names: Sequence[str],
        shapes: Sequence[Sequence[int]],
        parts_along: Callable[[Sequence[Dims], Sequence[str]], int],
    ) -> sharding.Call | None:
        """The call in which several dimensions are split together, as channels and their groups.

        Args:
          call: the whole one.
          names: of its operands.
          shapes: of its operands.
          parts_along: called with the operands' dimensions and some of their names, returns into
            how many parts these are to be split.
        """
        for fold in self.folds:
            parts = parts_along(call.operands, fold.dims.split())
            sizes = dict(zip(names, shapes, strict=True))
            part = fold.part(call.config, sizes, parts) if parts > 1 else None
            if part is not None:
                together, config = part
                operands, results = (
                    [dims.merged(together, _CHANNELS) for dims in each]
                    for each in (call.operands, call.results)
                )
                whole = all(
                    size % parts == 0
                    for dims, shape in zip(operands, shapes, strict=True)
                    for dim, size in zip(dims.names, shape, strict=True)
                    if dim == _CHANNELS
                )
                if not whole:
                    return None
                # A part may have one group, whose channels are not split again.
                return sharding.Call(config, operands, results, [*call.parallel, _CHANNELS])
        return None

    def _present_operands(self, present: Sequence[bool]) -> list[str]:
        return [key for key, each in zip(self.operands, present, strict=True) if each]

    def _present_results(self, present: Sequence[bool]) -> dict[str, Result]:
        names = self._present_operands(present)
        return {key: result for key, result in self.results.items() if result.like in names}

    def _abstract_eval(self, *avals, config: Config, present: Sequence[bool]):
        _compat.check_varying(self.name, *avals)
        operands = dict(zip(self._present_operands(present), avals, strict=True))
        known = self._parse_sizes({key: aval.shape for key, aval in operands.items()})
        sizes = self.sizes(config, known)
        results = self._present_results(present)
        check_sizes(self.name, {key: result.dims for key, result in results.items()}, sizes)
        return [
            operands[result.like].update(
                shape=tuple(sizes[dim] for dim in result.dims.split()), weak_type=False
            )
            for result in results.values()
        ]

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
        return lower(ctx, *values, config=config, present=present)

    def _lower_kernel(self, ctx, *values, config: Config, present: Sequence[bool]):
        """Lowers the kernel: where XLA can ask how to split it over devices, so that it does."""
        names = self._present_operands(present)
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
        part_of = functools.partial(self._part_of, call, names)
        return sharding.lower_split(ctx, values, mesh, bind, key, call, part_of)

    def _lower_reference(self, ctx, *arrays, config: Config, present: Sequence[bool]):
        """Lowers the reference: where there are several devices, on groups of the batch.

        XLA gives groups to devices where an operation has a dimension that counts them, and gathers
        what works on all of the batch at once.
        """
        operands = [self.operands[name] for name in self._present_operands(present)]
        in_axes = [0 if dims.names[0] == self.batch else None for dims in operands]
        sizes = {
            aval.shape[0]
            for aval, axis in zip(ctx.avals_in, in_axes, strict=True)
            if axis is not None
        }
        groups = batch_groups(ctx, *sizes) if sizes else 1
        function = self._rounded_reference
        if groups > 1:
            function = functools.partial(self._reference_on_groups, groups, in_axes)
        return self._lowering(function, ctx.avals_out)(ctx, *arrays, config=config, present=present)

    def _reference_on_groups(self, groups, in_axes, config, *operands):
        axes = iter(in_axes)
        axes = [None if operand is None else next(axes) for operand in operands]
        parts = [
            operand if axis is None else split(operand, 0, groups)
            for operand, axis in zip(operands, axes, strict=True)
        ]
        outs = jax.vmap(functools.partial(self.reference, config), axes)(*parts)
        merged = [
            out
            if out is None
            else out.reshape(-1, *out.shape[2:])
            if result.dims.split()[0] == self.batch
            else out.sum(axis=0)
            for out, result in zip(outs, self.results.values(), strict=True)
        ]
        return self._rounded(merged, operands)

    def _rounded_reference(self, config: Config, *operands: jax.Array | None):
        results = self.reference(config, *operands)
        check_results(self.name, "reference", results, list(self.results))
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
        bind = functools.partial(self._bind, present=present)
        size = next(a.shape[axis] for a, axis in zip(arrays, axes, strict=True) if axis is not None)
        names = self._present_operands(present)
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
        results = [Dims.parse(r.dims) for r in self._present_results(present).values()]
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
          reverse: of the one result: called with the configuration and the operands.
        """
        self.reverse = reverse
        ad.primitive_jvps[self.primitive] = self._jvp_of_custom_vjp

    def _jvp_of_custom_vjp(self, primals, tangents, *, config: Config, present: Sequence[bool]):
        (out,) = self._bind(*primals, config=config, present=present)
        return [out], [modes.tangent(self, primals, tangents, out, config=config, present=present)]

    def _jvp(self, primals, tangents, *, config: Config, present: Sequence[bool]):
        outs = self._bind(*primals, config=config, present=present)
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

            def reference(*values):
                arrays = list(primals)
                for i, value in zip(active, values, strict=True):
                    arrays[i] = value
                return self._call(self._rounded_reference, arrays, config, present)

            varying = [primals[i] for i in active]
            return jax.jvp(reference, varying, list(parts[len(tangents) :]))[1]

        names = self._present_operands(present)
        every = [*names, *(names[i] for i in active)]
        arrays = [*primals, *(tangents[i] for i in active)]
        return self._on_shards(on_parts, every, arrays, config, present)

    @usual_promotion()
    def _jvp_of_product(self, primals, tangents, *, config: Config, present: Sequence[bool]):
        names = self._present_operands(present)
        (out,) = self._bind(*primals, config=config, present=present)
        added = (self.product.term, self.product.scale)
        values: dict[str, Any] = dict.fromkeys(self.operands)
        values.update(zip(names, primals, strict=True))
        factors = {name: None if name in added else value for name, value in values.items()}
        terms = []
        for name, tangent in zip(names, tangents, strict=True):
            if type(tangent) is ad.Zero:
                continue
            if name in added:
                terms.append(self._scaled_term({**values, name: tangent}, out))
                continue
            (product,) = self(config, *{**factors, name: tangent}.values())
            assert product is not None
            # Without the term, all that is left may be shared.
            terms.append(broadcast(product, out.shape))
        return [out], [functools.reduce(ad.add_tangents, terms)]

    def _scaled_term(self, values: Mapping[str, Any], out: jax.Array) -> jax.Array:
        """The term times its scale, in the shape and dtype of `out`."""
        (result,) = self.results.values()
        # The transpose of a broadcast is a sum, for which half precision is too narrow.
        wide = accumulator(out)
        factors = []
        for name in (self.product.term, self.product.scale):
            if name is not None and values[name] is not None:
                axes = [result.dims.split().index(dim) for dim in self.operands[name].names]
                factors.append(jax.lax.broadcast_in_dim(values[name].astype(wide), out.shape, axes))
        return functools.reduce(jnp.multiply, factors).astype(out.dtype)

    @usual_promotion()
    def _transpose(self, cotangents, *operands, config: Config, present: Sequence[bool]):
        (cotangent,) = cotangents
        names = self._present_operands(present)
        linear = [n for n, v in zip(names, operands, strict=True) if ad.is_undefined_primal(v)]
        values: dict[str, Any] = dict.fromkeys(self.operands)
        values.update(zip(names, operands, strict=True))
        factors = () if self.product.term in names else self.product.transposes
        check_linear(self.name, linear, names, [*factors])
        if type(cotangent) is ad.Zero:
            return [ad.Zero(v.aval) if ad.is_undefined_primal(v) else None for v in operands]
        values[linear[0]] = values[linear[0]].aval
        shape = values[linear[0]].shape
        (gradient,) = self.product.transposes[linear[0]](config, *values.values(), cotangent)
        assert gradient is not None
        shared = [i for i, size in enumerate(gradient.shape) if size != shape[i]]
        if shared:
            gradient = jnp.sum(gradient, shared, keepdims=True)
        return [gradient if name in linear else None for name in names]

    @usual_promotion()
    def _transpose_of_reference(self, cotangents, *operands, config: Config, present):
        """For `jax.linear_transpose` of a primitive that is itself a transpose."""
        transposed = [i for i, value in enumerate(operands) if ad.is_undefined_primal(value)]

        def reference(*values: jax.Array) -> list[jax.Array]:
            arrays = list(operands)
            for i, value in zip(transposed, values, strict=True):
                arrays[i] = value
            return self._call(self._rounded_reference, arrays, config, present)

        transpose = jax.linear_transpose(reference, *(operands[i].aval for i in transposed))
        found = iter(transpose([ad.instantiate_zeros(each) for each in cotangents]))
        return [next(found) if i in transposed else None for i in range(len(operands))]


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
