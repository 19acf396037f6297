"""The layers that the layers here are made of."""

import dataclasses
from typing import Any

from flax import linen as nn
from flax.typing import Dtype, Initializer, PrecisionLike

from oxijax._core import arguments as arguments
from oxijax._layers.convolution import conv_general_dilated

__all__ = ["XAVIER", "ZEROS", "Parts"]

XAVIER, ZEROS = nn.initializers.xavier_uniform(), nn.initializers.zeros_init()


@dataclasses.dataclass(frozen=True)
class Parts:
    """Makes parts by arguments that all layers have; `features` is of inputs and results."""

    features: int
    dtype: Dtype | None
    param_dtype: Dtype
    precision: PrecisionLike
    kernel_init: Initializer
    offset_dtype: Dtype

    @classmethod
    def read(
        cls, features: int, dtype: Any, param_dtype: Any, precision: PrecisionLike,
        kernel_init: Any, offset_dtype: Any,
    ) -> "Parts":  # fmt: skip
        """Checks the arguments, but features."""
        if dtype is not None:
            dtype = arguments.read_float_dtype("dtype", dtype)
        param_dtype = arguments.read_float_dtype("param_dtype", param_dtype)
        arguments.read_precision(precision)
        arguments.check_callable("kernel_init", kernel_init)
        offset_dtype = arguments.read_float_dtype("offset_dtype", offset_dtype)
        return cls(features, dtype, param_dtype, precision, kernel_init, offset_dtype)

    def projection(self, use_bias: bool = True) -> nn.Dense:
        """To as many features, in the layer's dtype."""
        return nn.Dense(
            self.features,
            use_bias=use_bias,
            dtype=self.dtype,
            param_dtype=self.param_dtype,
            precision=self.precision,
            kernel_init=self.kernel_init,
        )

    def predictor(self, features: int, bias_init: Initializer = ZEROS) -> nn.Dense:
        """Of offsets or weights: in their dtype, and at first the same for all inputs."""
        return nn.Dense(
            features,
            dtype=self.offset_dtype,
            param_dtype=self.param_dtype,
            precision=self.precision,
            kernel_init=ZEROS,
            bias_init=bias_init,
        )

    def depthwise(self, kernel_size: tuple[int, int]) -> nn.Conv:
        """Before a predictor, in its dtype."""
        return nn.Conv(
            self.features,
            kernel_size,
            feature_group_count=self.features,
            conv_general_dilated=conv_general_dilated,
            dtype=self.offset_dtype,
            param_dtype=self.param_dtype,
            precision=self.precision,
        )

    def norm(self) -> nn.LayerNorm:
        """Before a predictor, in its dtype."""
        return nn.LayerNorm(
            epsilon=1e-6,
            dtype=self.offset_dtype,
            param_dtype=self.param_dtype,
            use_fast_variance=False,  # which is less exact
        )
