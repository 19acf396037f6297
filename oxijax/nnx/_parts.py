"""The layers that the layers here are made of."""

import dataclasses
from typing import Any

from flax import nnx
from flax.typing import Dtype, Initializer, PrecisionLike

from oxijax._core import arguments as arguments
from oxijax._layers.convolution import conv_general_dilated

__all__ = ["XAVIER", "ZEROS", "Parts", "check_rngs"]

XAVIER, ZEROS = nnx.initializers.xavier_uniform(), nnx.initializers.zeros_init()


def check_rngs(rngs: Any) -> None:
    if not isinstance(rngs, nnx.Rngs):
        raise TypeError(f"rngs must be a flax.nnx.Rngs, got {arguments.shown(rngs)}")
    if not hasattr(rngs, "params"):
        raise ValueError(f"rngs must have a stream params or default, got {rngs}")


@dataclasses.dataclass(frozen=True)
class Parts:
    """Makes parts that take `features`, by arguments that all layers have."""

    features: int
    dtype: Dtype | None
    param_dtype: Dtype
    precision: PrecisionLike
    kernel_init: Initializer
    rngs: nnx.Rngs
    offset_dtype: Dtype

    @classmethod
    def read(
        cls, features: int, dtype: Any, param_dtype: Any, precision: PrecisionLike,
        kernel_init: Any, rngs: Any, offset_dtype: Any,
    ) -> "Parts":  # fmt: skip
        """Checks the arguments, but features."""
        if dtype is not None:
            dtype = arguments.read_float_dtype("dtype", dtype)
        param_dtype = arguments.read_float_dtype("param_dtype", param_dtype)
        arguments.read_precision(precision)
        arguments.check_callable("kernel_init", kernel_init)
        check_rngs(rngs)
        offset_dtype = arguments.read_float_dtype("offset_dtype", offset_dtype)
        return cls(features, dtype, param_dtype, precision, kernel_init, rngs, offset_dtype)

    def projection(self, use_bias: bool = True) -> nnx.Linear:
        """To as many features, in the layer's dtype."""
        return nnx.Linear(
            self.features,
            self.features,
            use_bias=use_bias,
            dtype=self.dtype,
            param_dtype=self.param_dtype,
            precision=self.precision,
            kernel_init=self.kernel_init,
            rngs=self.rngs,
        )

    def predictor(self, features: int, bias_init: Initializer = ZEROS) -> nnx.Linear:
        """Of offsets or weights: in their dtype, and at first the same for all inputs."""
        return nnx.Linear(
            self.features,
            features,
            dtype=self.offset_dtype,
            param_dtype=self.param_dtype,
            precision=self.precision,
            kernel_init=ZEROS,
            bias_init=bias_init,
            rngs=self.rngs,
        )

    def depthwise(self, kernel_size: tuple[int, int]) -> nnx.Conv:
        """Before a predictor, in its dtype."""
        return nnx.Conv(
            self.features,
            self.features,
            kernel_size,
            feature_group_count=self.features,
            conv_general_dilated=conv_general_dilated,
            dtype=self.offset_dtype,
            param_dtype=self.param_dtype,
            precision=self.precision,
            rngs=self.rngs,
        )

    def norm(self) -> nnx.LayerNorm:
        """Before a predictor, in its dtype."""
        return nnx.LayerNorm(
            self.features,
            epsilon=1e-6,
            dtype=self.offset_dtype,
            param_dtype=self.param_dtype,
            use_fast_variance=False,  # which is less exact
            rngs=self.rngs,
        )
