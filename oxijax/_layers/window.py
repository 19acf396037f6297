"""What the layers of deformable convolution v3 and v4 share."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from oxijax._core import arguments as arguments
from oxijax._core.implementation import Implementation, read_implementation
from oxijax._layers.batch import Batch
from oxijax._layers.deform_conv import read_divisor
from oxijax._sampling.dcn import dcnv3, dcnv4
from oxijax._sampling.packed import packed_width

__all__ = ["WindowSums", "exact_gelu"]

Function = Callable[[jax.Array], jax.Array]


def exact_gelu(x: jax.Array) -> jax.Array:
    """GELU by the error function; Flax's own is an approximation."""
    return jax.nn.gelu(x, approximate=False)


@dataclasses.dataclass(frozen=True)
class WindowSums:
    """What is static in a layer: it keeps height and width.

    Attributes:
      channels: of inputs and of the result.
      groups: divides channels.
      kernel_size: of the window.
      dilation: from one tap to the next.
      offset_scale: of offsets and the window itself.
      remove_center: whether the tap in the middle is left out.
      implementation: of `oxijax.dcnv3` and `oxijax.dcnv4`.
    """

    channels: int
    groups: int
    kernel_size: tuple[int, int]
    dilation: tuple[int, int]
    offset_scale: float
    remove_center: bool
    implementation: Implementation = None

    @classmethod
    def read(
        cls,
        name: str,
        channels: Any,
        groups: Any,
        kernel_size: Any,
        dilation_name: str,
        dilation: Any,
        offset_scale: Any,
        remove_center: Any,
        implementation: Any,
    ) -> "WindowSums":
        """Checks a layer's arguments, of which two have names of their library."""
        groups, channels = read_divisor("groups", groups, **{name: channels})
        kernel = arguments.read_pair("kernel_size", kernel_size)
        remove_center = arguments.read_bool("remove_center", remove_center)
        if remove_center and (kernel[0] % 2 == 0 or kernel[1] % 2 == 0 or kernel == (1, 1)):
            raise ValueError(
                f"kernel_size must be odd and more than one tap with remove_center, got {kernel}"
            )
        return cls(
            channels,
            groups,
            kernel,
            arguments.read_pair(dilation_name, dilation),
            arguments.read_number("offset_scale", offset_scale),
            remove_center,
            read_implementation(implementation),
        )

    @property
    def mask_features(self) -> int:
        return self.groups * (math.prod(self.kernel_size) - self.remove_center)

    @property
    def offset_features(self) -> int:
        return 2 * self.mask_features

    @property
    def packed_features(self) -> int:
        """Offsets and masks of `oxijax.dcnv4`, filled up to a multiple of 8."""
        return packed_width(self.groups, self.mask_features // self.groups)

    def v3(
        self,
        inputs: jax.Array,
        *,
        input_proj: Function,
        dw_conv: Function,
        dw_norm: Function,
        activation: Function,
        offset: Function,
        mask: Function,
        center_scale: Function | None,
        output_proj: Function,
    ) -> jax.Array:
        """The result of a layer of v3, [..., H, W, channels], of its parts."""
        x = input_proj(inputs)
        features = activation(dw_norm(dw_conv(inputs)))
        y = self._over_batches(dcnv3, x, offset(features), mask(features), softmax=True)
        if center_scale is not None:
            y = self._blend(y, x, center_scale(features))
        return output_proj(y)

    def v4(
        self,
        inputs: jax.Array,
        *,
        value_proj: Function | None,
        offset_mask_dw: Function | None,
        offset_mask: Function,
        center_scale: Function | None,
        output_proj: Function | None,
        dtype: Any = None,
        param_dtype: Any = jnp.float32,
    ) -> jax.Array:
        """The result of a layer of v4, [..., H, W, channels], of its parts.

        Without projections it has the layer's dtype, if it has one, else that of inputs, or of
        parameters where inputs are integers.
        """
        if dtype is None and not jnp.issubdtype(inputs.dtype, jnp.floating):
            dtype = param_dtype
        x = inputs.astype(dtype or inputs.dtype) if value_proj is None else value_proj(inputs)
        features = inputs if offset_mask_dw is None else offset_mask_dw(inputs)
        y = self._over_batches(dcnv4, x, offset_mask(features))
        if center_scale is not None:
            y = self._blend(y, x, center_scale(y))
        return y if output_proj is None else output_proj(y)

    def _over_batches(
        self, function: Callable[..., jax.Array], *operands: jax.Array, **options: Any
    ) -> jax.Array:
        batch = Batch.of(operands[0], 3)
        y = function(
            *map(batch.merge, operands),
            kernel_size=self.kernel_size,
            dilation=self.dilation,
            groups=self.groups,
            offset_scale=self.offset_scale,
            remove_center=self.remove_center,
            implementation=self.implementation,
            **options,
        )
        return batch.split(y)

    def _blend(self, y: jax.Array, x: jax.Array, logits: jax.Array) -> jax.Array:
        """Between y and x, by a share of x that each group of a pixel has."""
        share = jax.nn.sigmoid(logits).astype(y.dtype)
        share = jnp.repeat(share, self.channels // self.groups, axis=-1)
        return y * (1 - share) + x * share
