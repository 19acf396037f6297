"""Compiles Triton kernels to the PTX beside this file, which tests run in the emulator.

It takes triton 3.9.0 and no GPU: TRITON_DISABLE_LINE_INFO=1 python compile.py. The launch that the
compiler chose is a comment in the first line of each text.
"""

# pyright: reportMissingImports=false
from pathlib import Path

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource


@triton.jit
def add(x, y, out, n, block: tl.constexpr):
    i = tl.program_id(0) * block + tl.arange(0, block)
    inside = i < n
    tl.store(out + i, tl.load(x + i, mask=inside) + tl.load(y + i, mask=inside), mask=inside)


@triton.jit
def softmax(x, out, columns, block: tl.constexpr):
    """Of one row a program."""
    row = tl.program_id(0)
    i = tl.arange(0, block)
    inside = i < columns
    values = tl.load(x + row * columns + i, mask=inside, other=float("-inf"))
    exponentials = tl.exp(values - tl.max(values, axis=0))
    tl.store(out + row * columns + i, exponentials / tl.sum(exponentials, axis=0), mask=inside)


@triton.jit
def matmul(
    a,
    b,
    out,
    rows,
    columns,
    depth,
    tile_m: tl.constexpr,
    tile_n: tl.constexpr,
    tile_k: tl.constexpr,
):
    m = tl.program_id(0) * tile_m + tl.arange(0, tile_m)
    n = tl.program_id(1) * tile_n + tl.arange(0, tile_n)
    total = tl.zeros((tile_m, tile_n), tl.float32)
    for start in range(0, depth, tile_k):
        k = start + tl.arange(0, tile_k)
        in_a = (m[:, None] < rows) & (k[None, :] < depth)
        in_b = (k[:, None] < depth) & (n[None, :] < columns)
        tile_a = tl.load(a + m[:, None] * depth + k[None, :], mask=in_a, other=0.0)
        tile_b = tl.load(b + k[:, None] * columns + n[None, :], mask=in_b, other=0.0)
        total = tl.dot(tile_a, tile_b, total)
    inside = (m[:, None] < rows) & (n[None, :] < columns)
    tl.store(out + m[:, None] * columns + n[None, :], total, mask=inside)


@triton.jit
def histogram(x, out, n, block: tl.constexpr):
    """How often each number occurs."""
    i = tl.program_id(0) * block + tl.arange(0, block)
    inside = i < n
    tl.atomic_add(out + tl.load(x + i, mask=inside), 1, mask=inside)


@triton.jit
def running_sum(x, out, block: tl.constexpr):
    i = tl.arange(0, block)
    tl.store(out + i, tl.cumsum(tl.load(x + i), axis=0))


KERNELS = {
    "add": (add, {"x": "*fp32", "y": "*fp32", "out": "*fp32", "n": "i32"}, {"block": 256}),
    "softmax": (softmax, {"x": "*fp32", "out": "*fp32", "columns": "i32"}, {"block": 128}),
    "matmul": (
        matmul,
        {
            "a": "*fp16",
            "b": "*fp16",
            "out": "*fp32",
            "rows": "i32",
            "columns": "i32",
            "depth": "i32",
        },
        {"tile_m": 32, "tile_n": 32, "tile_k": 32},
    ),
    "histogram": (histogram, {"x": "*i32", "out": "*i32", "n": "i32"}, {"block": 256}),
    "running_sum": (running_sum, {"x": "*fp32", "out": "*fp32"}, {"block": 512}),
}


def main() -> None:
    for name, (function, signature, constants) in KERNELS.items():
        signature = {**signature, **dict.fromkeys(constants, "constexpr")}
        source = ASTSource(function, signature, constants)
        compiled = triton.compile(source, target=GPUTarget("cuda", 80, 32))
        metadata = compiled.metadata
        launch = f"// threads {32 * metadata.num_warps}, dynamic shared {metadata.shared}"
        text = f"{launch}; triton {triton.__version__}\n{compiled.asm['ptx']}"
        Path(__file__).with_name(f"{name}.ptx").write_text(text)


if __name__ == "__main__":
    main()
