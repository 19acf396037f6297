"""Deformable convolution v3 and v4 as layers of any library."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, Self

import jax
import jax.numpy as jnp

from oxijax._convolution import parse_pair
from oxijax._core.arguments import checks
from oxijax._core.arguments.checks import Implementation, parse_implementation
from oxijax._core.arguments.precision import usual_promotion
from oxijax._layers.arguments import Named, as_images, parse_divisor
from oxijax._layers.batch import Batch
from oxijax._layers.convolution import over_batches
from oxijax._sampling.dcn import dcnv3, dcnv4
from oxijax._sampling.packed import packed_width

__all__ = ["WindowV3", "WindowV4", "exact_gelu"]


def exact_gelu(x: jax.Array) -> jax.Array:
    """GELU by the error function; Flax's own is an approximation."""
    return jax.nn.gelu(x, approximate=False)


@dataclasses.dataclass(frozen=True)
class _Window:
    """The static part of a layer, whose result has the height and the width of its inputs.

    Attributes:
      name: the library's name of features.
      features: the number of features of inputs and of the result.
      kernel_size: the height and the width of the window.
      dilation: the distance from one tap to the next.
      groups: the number of groups, which divides features.
      dw_kernel_size: the kernel of the depthwise convolution; None for the default.
      offset_scale: the factor of offsets and of the window itself.
      has_center_scale: whether each group is blended with its input.
      remove_center: whether the tap in the middle is left out.
      implementation: `implementation` of `oxijax.dcnv3` and `oxijax.dcnv4`.
    """

    name: str
    features: int
    kernel_size: tuple[int, int]
    dilation: tuple[int, int]
    groups: int
    dw_kernel_size: tuple[int, int] | None
    offset_scale: float
    has_center_scale: bool
    remove_center: bool
    implementation: Implementation = None

    @classmethod
    def parse(
        cls, features: Named, kernel_size: Any, dilation: Named, groups: Any, dw_kernel_size: Any,
        offset_scale: Any, center_feature_scale: Any, remove_center: Any, implementation: Any,
    ) -> Self:  # fmt: skip
        """The static part of a layer with these arguments, which are checked."""
        groups, channels = parse_divisor("groups", groups, features)
        kernel = parse_pair("kernel_size", kernel_size)
        remove_center = checks.parse_bool("remove_center", remove_center)
        if remove_center and (kernel[0] % 2 == 0 or kernel[1] % 2 == 0 or kernel == (1, 1)):
            raise ValueError(
                f"kernel_size must be odd and more than one tap with remove_center, got {kernel}"
            )
        if dw_kernel_size is not None:
            dw_kernel_size = parse_pair("dw_kernel_size", dw_kernel_size)
        return cls(
            features[0],
            channels,
            kernel,
            parse_pair(*dilation),
            groups,
            dw_kernel_size,
            checks.parse_number("offset_scale", offset_scale),
            checks.parse_bool("center_feature_scale", center_feature_scale),
            remove_center,
            parse_implementation(implementation),
        )

    @property
    def mask_features(self) -> int:
        return self.groups * (math.prod(self.kernel_size) - self.remove_center)

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
        share = jnp.repeat(share, self.features // self.groups, axis=-1)
        return y * (1 - share) + x * share


class WindowV3(_Window):
    """The static part of a layer of v3; its depthwise convolution has the window's kernel."""

    @property
    def depthwise_size(self) -> tuple[int, int]:
        return self.dw_kernel_size or self.kernel_size

    @property
    def offset_features(self) -> int:
        return 2 * self.mask_features

    def __call__(self, inputs: Any, sublayers: Any) -> jax.Array:
        """The layer's result [..., H, W, features].

        Args:
          inputs: not yet checked.
          sublayers: an object with functions of arrays [..., features] as attributes dw_norm,
            activation, offset, mask, input_proj, output_proj and center_scale, which may be None,
            and dw_conv, a function of images [N, H, W, C].
        """
        inputs = as_images("inputs", inputs, self.features, self.name)
        x = sublayers.input_proj(inputs)
        features = over_batches(sublayers.dw_conv)(inputs)
        with usual_promotion():  # Flax promotes the dtype, such as float64, with float32
            features = sublayers.dw_norm(features)
        features = sublayers.activation(features)
        offset, mask = sublayers.offset(features), sublayers.mask(features)
        y = self._over_batches(dcnv3, x, offset, mask, softmax=True)
        if sublayers.center_scale is not None:
            y = self._blend(y, x, sublayers.center_scale(features))
        return sublayers.output_proj(y)


class WindowV4(_Window):
    """The static part of a layer of v4, which has no depthwise convolution by default."""

    @property
    def packed_features(self) -> int:
        """Offsets and masks of `oxijax.dcnv4`, filled up to a multiple of 8."""
        return packed_width(self.groups, self.mask_features // self.groups)

    def __call__(self, inputs: Any, sublayers: Any) -> jax.Array:
        """The layer's result [..., H, W, features].

        Without projections it has the layer's dtype, if it has one, else that of inputs, or of
        parameters where inputs are integers.

        Args:
          inputs: not yet checked.
          sublayers: an object with attributes as for v3, named offset_mask_dw, offset_mask,
            value_proj, output_proj and center_scale, of which all but offset_mask may be None;
            and dtype, which may be None too, and param_dtype.
        """
        inputs = features = as_images("inputs", inputs, self.features, self.name)
        if sublayers.value_proj is None:
            is_float = jnp.issubdtype(inputs.dtype, jnp.floating)
            x = inputs.astype(
                sublayers.dtype or (inputs.dtype if is_float else sublayers.param_dtype)
            )
        else:
            x = sublayers.value_proj(inputs)
        if sublayers.offset_mask_dw is not None:
            features = over_batches(sublayers.offset_mask_dw)(inputs)
        y = self._over_batches(dcnv4, x, sublayers.offset_mask(features))
        if sublayers.center_scale is not None:
            y = self._blend(y, x, sublayers.center_scale(y))
        return y if sublayers.output_proj is None else sublayers.output_proj(y)
