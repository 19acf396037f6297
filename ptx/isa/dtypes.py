"""The types of PTX registers, memory and arithmetic."""

import dataclasses

__all__ = [
    "DTYPES",
    "DType",
    "b8",
    "b16",
    "b32",
    "b64",
    "bf16",
    "bf16x2",
    "f16",
    "f16x2",
    "f32",
    "f64",
    "pred",
    "s8",
    "s16",
    "s32",
    "s64",
    "tf32",
    "u8",
    "u16",
    "u32",
    "u64",
]  # fmt: skip


@dataclasses.dataclass(frozen=True)
class DType:
    """A PTX type.

    Attributes:
      name: PTX's name, for example "f16x2".
      bits: width of one value; a predicate has 1.
      kind: "float", "unsigned", "signed", "bits" or "predicate". Packed halves and tf32,
        which live in 32-bit registers, are "bits" to registers and "float" to arithmetic:
        here they are "float".
      lanes: values in one register: 2 for packed halves.
    """

    name: str
    bits: int
    kind: str
    lanes: int = 1

    @property
    def bytes(self) -> int:
        return self.bits // 8

    @property
    def is_float(self) -> bool:
        return self.kind == "float"

    @property
    def is_integer(self) -> bool:
        return self.kind in ("unsigned", "signed")

    def __repr__(self) -> str:
        return self.name


pred = DType("pred", 1, "predicate")
b8, b16, b32, b64 = (DType(f"b{n}", n, "bits") for n in (8, 16, 32, 64))
u8, u16, u32, u64 = (DType(f"u{n}", n, "unsigned") for n in (8, 16, 32, 64))
s8, s16, s32, s64 = (DType(f"s{n}", n, "signed") for n in (8, 16, 32, 64))
f16, bf16 = DType("f16", 16, "float"), DType("bf16", 16, "float")
f16x2, bf16x2 = DType("f16x2", 32, "float", 2), DType("bf16x2", 32, "float", 2)
tf32, f32, f64 = DType("tf32", 32, "float"), DType("f32", 32, "float"), DType("f64", 64, "float")

DTYPES = {
    dtype.name: dtype
    for dtype in (
        pred, b8, b16, b32, b64, u8, u16, u32, u64, s8, s16, s32, s64,
        f16, bf16, f16x2, bf16x2, tf32, f32, f64,
    )
}  # fmt: skip
