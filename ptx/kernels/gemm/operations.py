"""The operation of a matrix product, and its arrays: `MatrixProduct` names the dimensions."""

from ptx.operator import In, Operation, Out

__all__ = ["ALPHA", "BETA", "PRODUCT"]

ALPHA = In("alpha", "g?", "sum_type", flag="use_alpha")
BETA = In("beta", "g?", "sum_type", flag="use_beta")

PRODUCT = Operation(
    "gemm",
    (
        In("a", lambda product: "g? k m" if product.transpose_a else "g? m k"),
        In("b", lambda product: "g? n k" if product.transpose_b else "g? k n"),
        In("c", "g m n", flag="use_c"),
        *(ALPHA, BETA),
    ),
    (Out("y", "g m n"),),
)
