"""Calls of every kernel with something changed in them, as a program from elsewhere may have it.

    PYTHONPATH=tests python -m support.mutated_calls SEED COUNT

runs so many of them in this process, on the emulated GPU, and prints a line of JSON before and
after each: what is changed, how the call ended, and after how many seconds of processor time. A
call that is accepted runs in the emulator, which raises where a kernel leaves its buffers. That the
emulated buffers are XLA's own is checked when a call is resolved.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import random
import resource
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

import oxijax
from oxijax._core.launch import TARGET_NAME, Emulation, _call, find_handler
from oxijax._core.launch._spec import VERSION, Spec, key_of
from oxijax.testing import emulate_gpu
from ptx import registry
from support.layers import LAYERS, Layer, program_of

__all__ = ["CustomCall", "Mutant", "mutants", "real_calls", "run"]

Buffer = tuple[tuple[int, ...], str]  # shape, dtype


@dataclasses.dataclass(frozen=True)
class CustomCall:
    """A launch as XLA is told of it, all of which a program may have otherwise.

    Attributes:
      spec: the text that names a kernel and its configuration.
      key, version: the spec's key and version.
      operands, results: the shape and dtype of each.
      aliases: (operand, result) pairs that share memory, for XLA.
      attributes: further ones.
    """

    spec: bytes
    key: Any
    version: Any
    operands: tuple[Buffer, ...]
    results: tuple[Buffer, ...]
    aliases: tuple[tuple[int, int], ...]
    attributes: tuple[tuple[str, Any], ...] = ()


@dataclasses.dataclass(frozen=True)
class Mutant:
    """A changed call.

    Attributes:
      change: what is changed.
      call: the call.
    """

    change: str
    call: CustomCall


_conv, _deform_conv, _gemm = (
    functools.partial(function, precision="highest")
    for function in (oxijax.conv, oxijax.deform_conv, oxijax.gemm)
)
# Beside LAYERS: kernels for tiny groups, the one that gathers, other types and strategies.
_MORE = {
    "depthwise": Layer(_conv, ((1, 4, 5, 4), (3, 3, 1, 4))),
    "tensor-cores": Layer(
        functools.partial(oxijax.conv, precision="default"), ((1, 4, 5, 8), (3, 3, 8, 8))
    ),
    "deformable-depthwise": Layer(
        _deform_conv, ((1, 4, 5, 4), (1, 4, 5, 18), (3, 3, 1, 4), (1, 4, 5, 9))
    ),
    "version-1": Layer(_deform_conv, ((1, 4, 5, 8), (1, 4, 5, 18), (3, 3, 8, 4))),
    "split-sum": Layer(functools.partial(_gemm, strategy="warp_parallel"), ((8, 64), (64, 8))),
    "in-shared-memory": Layer(
        functools.partial(_gemm, strategy="cache_persistent", alpha=2.0), ((136, 24), (24, 8))
    ),
}


@functools.cache
def real_calls() -> tuple[CustomCall, ...]:
    """A call of each kernel, in each configuration, that the layers have forward and backward."""
    found: dict[tuple[str, tuple[Buffer, ...]], CustomCall] = {}
    lower = _call._lower_one

    def recorded(ctx, *operands, kernel, config, results, aliases, grouped, shared, **params):
        spec = (
            Spec(kernel, config, shared if grouped else None, Emulation("sm_80")).to_json().encode()
        )
        buffers = tuple((aval.shape, aval.dtype.name) for aval in ctx.avals_in)
        outs = tuple((tuple(shape), np.dtype(dtype).name) for shape, dtype in results)
        call = CustomCall(spec, key_of(spec), VERSION, buffers, outs, aliases)
        found[call.spec.decode(), call.operands] = call
        return lower(
            ctx, *operands, kernel=kernel, config=config, results=results, aliases=aliases,
            grouped=grouped, shared=shared, **params,
        )  # fmt: skip

    small = {name: LAYERS[name] for name in ("conv", "deform_conv", "gemm-batch", "ms_deform_attn")}
    small["gemm-both"] = dataclasses.replace(LAYERS["gemm-both"], shapes=((16, 128), (16, 8)))
    with emulate_gpu("sm_80"), mock.patch.object(_call, "_lower_one", recorded):
        for layer in (small | _MORE).values():
            for dtype, deterministic in (
                *(("float32", False), ("float32", True)),
                *(("bfloat16", False), ("float16", True)),
                *(("float64", False), ("float64", True)),
            ):
                operands = [jax.ShapeDtypeStruct(shape, dtype) for shape in layer.shapes]
                grad_y = jax.eval_shape(layer.function, *operands)
                with oxijax.config.deterministic_mode(deterministic):
                    program_of(layer).lower(operands, grad_y)
    return tuple(found.values())


def mutants(seed: int) -> Iterator[Mutant]:
    """Changed calls without an end, always the same for a seed."""
    random_ = random.Random(seed)
    calls = real_calls()
    while True:
        call = random_.choice(calls)
        changes = []
        for _ in range(random_.choice((1, 1, 1, 2, 3))):
            change = random_.choice(_CHANGES)
            call = change(random_, call)
            changes.append(change.__name__)
        if random_.random() < 0.8 and "key" not in changes:
            call = dataclasses.replace(call, key=key_of(call.spec))
        yield Mutant(", ".join(changes), call)


def run(call: CustomCall, generator: np.random.Generator) -> str:
    """Runs a call: "ran", "left out by XLA" where nothing results, or the error that XLA reports.

    Raises:
      AssertionError: the call ran, and one of its operands has other values than before, or its key
        is not its spec's.
    """
    operands = [jnp.asarray(_values(generator, *buffer)) for buffer in call.operands]
    before = [np.array(operand) for operand in operands]
    function = jax.ffi.ffi_call(
        TARGET_NAME,
        [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in call.results],
        input_output_aliases=dict(call.aliases),
    )
    attributes = {"spec": call.spec.decode("latin-1"), "key": call.key, "version": call.version}
    attributes |= dict(call.attributes)
    attributes = {name: value for name, value in attributes.items() if value is not None}
    try:
        # Not eagerly: a program of one call is compiled without XLA's optimisations.
        jax.block_until_ready(jax.jit(lambda *v: function(*v, **attributes))(*operands))
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    if not any(0 not in shape for shape, _ in call.results):
        return "left out by XLA"
    assert call.key == key_of(call.spec), "the key is not that of the spec"
    assert call.version == VERSION, "the version is another"
    for operand, value in zip(operands, before, strict=True):
        assert np.array(operand).tobytes() == value.tobytes(), "an operand was written"
    return "ran"


def _values(generator: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    if dtype in ("int4", "uint4"):
        return generator.integers(0, 8, shape).astype(jnp.dtype(dtype))
    if jnp.issubdtype(jnp.dtype(dtype), jnp.integer):
        bits = generator.integers(0, 256, (*shape, jnp.dtype(dtype).itemsize), np.uint8)
        return bits.view(jnp.dtype(dtype)).reshape(shape)
    # Offsets that point everywhere, and nowhere.
    values = generator.standard_normal(shape) * 10.0 ** generator.integers(-1, 12)
    special = generator.random(shape) < 0.02
    return np.where(
        special, generator.choice([np.nan, np.inf, -np.inf, 0.0], shape), values
    ).astype(jnp.dtype(dtype))


# ---- changes

_NUMBERS = (-(2**63), -1, 0, 1, 2, 3, 4, 5, 7, 8, 16, 31, 100, 4096, 2**20, 2**31, 2**32, 2**63 - 1)
_TYPES = (  # all that JAX has but its keys
    *("float16", "bfloat16", "float32", "float64", "complex64", "complex128", "bool"),
    *("int4", "int8", "int16", "int32", "int64", "uint4", "uint8", "uint16", "uint32", "uint64"),
    *("float8_e4m3b11fnuz", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"),
)
_ODD = (None, True, False, 1.5, "", "x", [], {}, [1], {"dtype": "f16"}, {"dtype": "u8"}, "1" * 500)


def spec_field(random_: random.Random, call: CustomCall) -> CustomCall:
    """A value of the configuration, or anything else in the spec."""
    try:
        content = json.loads(call.spec)
        place = random_.choice(
            [content["config"], content["config"], content["emulation"], content]
        )
        name = random_.choice(sorted(place))
        old = place[name]
    except (ValueError, LookupError, TypeError):  # the text has been changed before
        return call
    if type(old) is int and random_.random() < 0.7:
        place[name] = random_.choice((*_NUMBERS, old - 1, old + 1, 2 * old, old // 2, -old))
    elif type(old) is bool and random_.random() < 0.7:
        place[name] = not old
    elif isinstance(old, str) and random_.random() < 0.7:
        kernels = [json.loads(other.spec)["kernel"] for other in real_calls()]
        place[name] = random_.choice((*kernels, "sm_75", "sm_90", "sm_120", "shallow_k", old[:-1]))
    elif isinstance(old, dict) and "dtype" in old and random_.random() < 0.7:
        place[name] = {"dtype": random_.choice(("f16", "bf16", "f32", "f64", "u32", "s8", "pred"))}
    elif random_.random() < 0.2:
        del place[name]
    elif random_.random() < 0.2:
        place[f"{name}_"] = old
    else:
        place[name] = random_.choice((*_NUMBERS, *_ODD))
    return dataclasses.replace(call, spec=_json(content))


def grouping(random_: random.Random, call: CustomCall) -> CustomCall:
    """Whether, and which, operands are there once for each group."""
    try:
        content = json.loads(call.spec)
        count = len(call.operands) + 1
        content["grouped"] = random_.choice(
            ([], [0], [1], list(range(count)), [count], [-1], [1, 0], [0, 0], [True], "0", 0)
        )
    except (ValueError, TypeError):
        return call
    groups = random_.choice((1, 2, 3))
    every = random_.random() < 0.7
    operands, results = (
        tuple(((groups, *shape), dtype) if every else (shape, dtype) for shape, dtype in buffers)
        for buffers in (call.operands, call.results)
    )
    return dataclasses.replace(call, spec=_json(content), operands=operands, results=results)


def text(random_: random.Random, call: CustomCall) -> CustomCall:
    """Bytes of the spec."""
    spec = bytearray(call.spec)
    for _ in range(random_.choice((1, 1, 2, 10))):
        at = random_.randrange(len(spec) + 1)
        match random_.randrange(5):
            case 0:
                spec[at : at + 1] = bytes([random_.randrange(256)])
            case 1:
                spec[at:at] = random_.choice(
                    (b" ", b"{", b"[" * 1000, b'"', b"\0", b"9" * 40, b",")
                )
            case 2:
                del spec[at : at + random_.choice((1, 5, 50))]
            case 3:
                spec[at:at] = spec[: random_.randrange(100)]
            case _:
                spec[at : at + 1] = random_.choice((b"0", b"1", b"-", b"e", b"."))
    return dataclasses.replace(call, spec=bytes(spec) or b"{}")


def key(random_: random.Random, call: CustomCall) -> CustomCall:
    """The key: another's, one beside it, none, or of another type."""
    other = random_.choice(real_calls()).key
    keys = (other, key_of(call.spec) ^ 1, -1, 0, None, "key", 1.5)
    return dataclasses.replace(call, key=random_.choice(keys))


def version(random_: random.Random, call: CustomCall) -> CustomCall:
    """The version, which may be missing or of another type."""
    versions = (VERSION - 1, VERSION + 1, 0, -1, 2**62, None, "3", 3.0)
    return dataclasses.replace(call, version=random_.choice(versions))


def spec_of_another_call(random_: random.Random, call: CustomCall) -> CustomCall:
    """The spec."""
    return dataclasses.replace(call, spec=random_.choice(real_calls()).spec)


def buffers(random_: random.Random, call: CustomCall) -> CustomCall:
    """The number or the order of operands and results."""
    operands, results = list(call.operands), list(call.results)
    some = random_.choice((operands, results))
    match random_.randrange(5):
        case 0 if some:
            some.pop(random_.randrange(len(some)))
        case 1 if some:
            some.append(random_.choice(some))
        case 2:
            some.append(((random_.choice((0, 1, 8)),), "float32"))
        case 3:
            random_.shuffle(some)
        case _ if operands:
            results.insert(0, operands.pop())
    return dataclasses.replace(call, operands=tuple(operands), results=tuple(results), aliases=())


def dtype(random_: random.Random, call: CustomCall) -> CustomCall:
    """The type of one buffer."""

    def change(shape: tuple[int, ...], _: str) -> Buffer:
        return shape, random_.choice(_TYPES)

    return _with_one_buffer(random_, call, change)


def size(random_: random.Random, call: CustomCall) -> CustomCall:
    """A dimension of one buffer, or of all that have the same size."""

    def changed(old: int) -> int:
        return random_.choice((0, 1, max(0, old - 1), old + 1, 2 * old, old // 2, 3, 17))

    if random_.random() < 0.5:
        every = {size for shape, _ in (*call.operands, *call.results) for size in shape}
        if not every:
            return call
        old = random_.choice(sorted(every))
        new = changed(old)

        def rename(buffers: tuple[Buffer, ...]) -> tuple[Buffer, ...]:
            return tuple(
                (tuple(new if size == old else size for size in shape), dtype)
                for shape, dtype in buffers
            )

        return dataclasses.replace(
            call, operands=rename(call.operands), results=rename(call.results)
        )

    def change(shape: tuple[int, ...], dtype: str) -> Buffer:
        if not shape:
            return (2,), dtype
        at = random_.randrange(len(shape))
        return (*shape[:at], changed(shape[at]), *shape[at + 1 :]), dtype

    return _with_one_buffer(random_, call, change)


def rank(random_: random.Random, call: CustomCall) -> CustomCall:
    """The rank of one buffer, which may have as many elements as before."""

    def change(shape: tuple[int, ...], dtype: str) -> Buffer:
        flat = (int(np.prod(shape)),)
        return random_.choice(((1, *shape), (*shape, 1), shape[1:], shape[::-1], flat, ())), dtype

    return _with_one_buffer(random_, call, change)


def aliases(random_: random.Random, call: CustomCall) -> CustomCall:
    """Which operand and result share memory, for XLA."""
    pairs = [
        (i, j)
        for i, operand in enumerate(call.operands)
        for j, result in enumerate(call.results)
        if operand == result
    ]
    chosen = (random_.choice(pairs),) if pairs and random_.random() < 0.6 else ()
    return dataclasses.replace(call, aliases=chosen)


def attributes(random_: random.Random, call: CustomCall) -> CustomCall:
    """Another attribute."""
    name = random_.choice(("keys", "Spec", "zzz", "device", "kez"))
    return dataclasses.replace(call, attributes=((name, random_.choice((1, "x", 2.5, True))),))


_CHANGES: tuple[Callable[[random.Random, CustomCall], CustomCall], ...] = (
    *(spec_field,) * 5, grouping, text, key, version, spec_of_another_call,
    buffers, dtype, dtype, *(size,) * 4, rank, aliases, attributes,
)  # fmt: skip


def _with_one_buffer(
    random_: random.Random, call: CustomCall, change: Callable[[tuple[int, ...], str], Buffer]
) -> CustomCall:
    operands, results = list(call.operands), list(call.results)
    some = random_.choice((operands, results)) or operands
    if some:
        at = random_.randrange(len(some))
        some[at] = change(*some[at])
    return dataclasses.replace(call, operands=tuple(operands), results=tuple(results), aliases=())


def _json(content: Any) -> bytes:
    return json.dumps(content, sort_keys=True, separators=(",", ":")).encode()


def main(seed: int, count: int) -> None:
    jax.config.update("jax_enable_x64", True)
    generator = np.random.default_rng(seed)
    called = {json.loads(call.spec)["kernel"] for call in real_calls()}
    assert called == set(registry.KERNELS), "a layer is missing here that has the other kernels"
    for call in real_calls():
        ended = run(call, generator)
        assert ended == "ran", f"a real call: {call}: {ended}"
    print(json.dumps({"real": len(real_calls()), "handler": str(find_handler())}), flush=True)
    for number, mutant in zip(range(count), mutants(seed), strict=False):
        print(json.dumps({"number": number, "change": mutant.change}), flush=True)
        start = time.process_time()
        try:
            ended = run(mutant.call, generator)
        except AssertionError as error:
            ended = f"WRONG: {error}"
        seconds = time.process_time() - start
        line = {"number": number, "seconds": round(seconds, 3), "ended": ended}
        if "failed in the emulator" in ended or ended.startswith("WRONG"):
            line["call"] = str(mutant.call)
        print(json.dumps(line), flush=True)
        if number % 50 == 49:
            jax.clear_caches()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"peak": peak}), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
