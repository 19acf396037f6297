"""The parts of layers that Flax NNX and Flax Linen have in common."""

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar, Generic, Self, TypeVar

import jax
from flax.typing import Dtype, Initializer, PrecisionLike

from oxijax._core.arguments import checks
from oxijax._core.arguments.keywords import explain_keywords
from oxijax._core.arguments.precision import parse_precision
from oxijax._layers.convolution import conv_general_dilated
from oxijax._layers.deform_conv import Geometry, Prediction

__all__ = [
    "LECUN",
    "XAVIER",
    "ZEROS",
    "AttentionCalls",
    "DeformConvCalls",
    "Options",
    "Sublayers",
    "WindowCalls",
]

Linear = TypeVar("Linear")
Conv = TypeVar("Conv")
Norm = TypeVar("Norm")

LECUN, XAVIER = jax.nn.initializers.lecun_normal(), jax.nn.initializers.xavier_uniform()
ZEROS: Initializer = jax.nn.initializers.zeros


@dataclasses.dataclass(frozen=True)
class Options:
    """The options that all layers have."""

    dtype: Dtype | None
    param_dtype: Dtype
    precision: PrecisionLike
    kernel_init: Initializer
    offset_dtype: Dtype

    @classmethod
    def parse(
        cls, dtype: Any, param_dtype: Any, precision: Any, kernel_init: Any, offset_dtype: Any
    ) -> Self:
        """The options of a layer with these arguments, which are checked."""
        if dtype is not None:
            dtype = checks.parse_float_dtype("dtype", dtype)
        param_dtype = checks.parse_float_dtype("param_dtype", param_dtype)
        parse_precision(precision)
        checks.check_callable("kernel_init", kernel_init)
        offset_dtype = checks.parse_float_dtype("offset_dtype", offset_dtype)
        return cls(dtype, param_dtype, precision, kernel_init, offset_dtype)

    @classmethod
    def of(cls, layer: Any) -> Self:
        """The options that a layer has as attributes, which are checked."""
        return cls.parse(*(getattr(layer, field.name) for field in dataclasses.fields(cls)))

    def of_predictor(self) -> dict[str, Any]:
        """The options of a convolution or a linear layer that predicts, or comes before."""
        return {
            "dtype": self.offset_dtype,
            "param_dtype": self.param_dtype,
            "precision": self.precision,
        }

    def offset_conv(
        self, conv: Callable[..., Conv], geometry: Geometry, prediction: Prediction
    ) -> Conv:
        """The predictor of a deformable convolution, which starts with zeros."""
        return conv(
            prediction.channels,
            geometry.kernel_size,
            geometry.strides,
            padding=geometry.padding,
            kernel_dilation=geometry.dilation,
            kernel_init=ZEROS,
            bias_init=ZEROS,
            conv_general_dilated=conv_general_dilated,
            **self.of_predictor(),
        )


@dataclasses.dataclass(frozen=True)
class Sublayers(Generic[Linear, Conv, Norm]):
    """Factories of the sublayers of a layer.

    Attributes:
      features: the number of features of the layer's inputs and results.
      options: the layer's options.
      linear: makes a linear layer, by its number of output features and Flax's options.
      conv: makes a convolution that keeps the features, by its kernel size and Flax's options.
      norm: makes a layer normalization, by Flax's options.
    """

    features: int
    options: Options
    linear: Callable[..., Linear]
    conv: Callable[..., Conv]
    norm: Callable[..., Norm]

    def projection(self, use_bias: bool = True) -> Linear:
        """Square linear projection in the layer's dtype."""
        return self.linear(
            self.features,
            use_bias=use_bias,
            dtype=self.options.dtype,
            param_dtype=self.options.param_dtype,
            precision=self.options.precision,
            kernel_init=self.options.kernel_init,
        )

    def predictor(self, features: int, bias_init: Initializer = ZEROS) -> Linear:
        """Linear predictor of offsets or weights, which starts with the same for all inputs."""
        options = self.options.of_predictor()
        return self.linear(features, **options, kernel_init=ZEROS, bias_init=bias_init)

    def depthwise(self, kernel_size: tuple[int, int]) -> Conv:
        """Depthwise convolution before a predictor, in the predictor's dtype."""
        return self.conv(
            kernel_size,
            feature_group_count=self.features,
            conv_general_dilated=conv_general_dilated,
            **self.options.of_predictor(),
        )

    def normalization(self) -> Norm:
        """Layer normalization before a predictor, in the predictor's dtype."""
        return self.norm(
            epsilon=1e-6,
            dtype=self.options.offset_dtype,
            param_dtype=self.options.param_dtype,
            use_fast_variance=False,  # which is less exact
        )


class DeformConvCalls:
    """The methods of `DeformConv`."""

    _run: Callable[..., Any]  # of what the methods are called with

    def __call__(
        self,
        inputs: jax.Array,
        offset_inputs: jax.Array | None = None,
        *,
        flow: jax.Array | None = None,
        offset: jax.Array | None = None,
        mask: jax.Array | None = None,
    ) -> jax.Array:
        """Applies the layer.

        Args:
          inputs: images [..., H, W, C] with any number of batch dimensions, also none.
          offset_inputs: [..., H, W, features], what the predictor reads in place of inputs.
          flow: [..., Ho, Wo, 2*F] in pixels, added to what is predicted: F pairs (x, y), as optical
            flow has them, each for one F-th of the offset groups.
          offset: [..., Ho, Wo, offset_groups * Kh * Kw * 2] in pixels, in place of what is
            predicted.
          mask: [..., Ho, Wo, offset_groups * Kh * Kw], with offset; None weighs samples with 1.

        Returns:
          Images [..., Ho, Wo, O] with the layer's number O of output features.

        Raises:
          ValueError: an array of another shape, or inputs too small for the kernel; arguments that
            exclude each other, or the predictor's output, if they don't fit.
          TypeError: an argument that is no array, or not real.
        """
        return self._run(inputs, offset_inputs, flow, offset, mask)

    def offsets(
        self,
        inputs: jax.Array,
        offset_inputs: jax.Array | None = None,
        *,
        flow: jax.Array | None = None,
    ) -> tuple[jax.Array, jax.Array | None]:
        """Tells where a call samples and how much the samples weigh, to draw or watch both.

        Arguments and errors are those of a call.

        Returns:
          offset [..., Ho, Wo, offset_groups * Kh * Kw * 2] in pixels, and mask
          [..., Ho, Wo, offset_groups * Kh * Kw] or None: those of `oxijax.deform_conv`.
        """
        return self._run(inputs, offset_inputs, flow, None, None, only_samples=True)


class AttentionCalls:
    """The methods of `MSDeformAttn`."""

    attention: Any
    takes_out_sharding: ClassVar[bool] = True  # as its linear layers do

    @explain_keywords
    def __call__(
        self,
        inputs_q: jax.Array,
        reference_points: jax.Array,
        inputs_v: jax.Array,
        *,
        spatial_shapes: tuple[tuple[int, ...], ...],
        padding_mask: jax.Array | None = None,
        out_sharding: Any = None,
    ) -> jax.Array:
        """Applies the layer.

        Args:
          inputs_q: queries [..., Q, features], with any number of batch dimensions.
          reference_points: [..., Q, num_levels, 2], (x, y) from 0 to 1 in each level, or
            [..., Q, num_levels, 4], boxes (x, y, width, height) with (x, y) in the middle; a 1 in
            place of num_levels is for all. Offsets count in pixels of the level, or in offset_scale
            times a box divided by the number of points.
          inputs_v: values [..., S, features], the pixels of all levels, row by row and level
            after level.
          spatial_shapes: height and width of each level, ints; (width,) or (depth, height, width)
            with dims 1 or 3, for which coordinates are (x) and (x, y, z), and boxes accordingly.
          padding_mask: [..., S], True where values count as zeros: the inverse of Hugging Face's
            attention_mask.
          out_sharding: how the result is sharded over Explicit mesh axes, of NNX's layer alone:
            what `nnx.Linear` needs where the kernel of output_proj is sharded along its inputs.

        Returns:
          [..., Q, features].

        Raises:
          ValueError: an array of another shape, by name.
          TypeError: an argument of the wrong type or dtype, by name.
        """
        checks.check_out_sharding(out_sharding)
        if out_sharding is not None and not (self.takes_out_sharding and self.attention.project):
            raise ValueError(
                "out_sharding must be None where output_proj is no nnx.Linear, got "
                f"{checks.shown(out_sharding)}"
            )
        options = {} if out_sharding is None else {"out_sharding": out_sharding}
        points = (inputs_q, reference_points, inputs_v, padding_mask, spatial_shapes)
        return self.attention(*points, sublayers=self, **options)

    def sampling_points(
        self,
        inputs_q: jax.Array,
        reference_points: jax.Array,
        *,
        spatial_shapes: tuple[tuple[int, ...], ...],
    ) -> tuple[jax.Array, jax.Array]:
        """Tells where a call looks and how much it weighs what it sees, to draw both.

        Arguments and errors are those of a call.

        Returns:
          locations [..., Q, num_heads, points of all levels, dims] as (x, y) from 0 to 1, and
          weights [..., Q, num_heads, points of all levels], whose sums are 1.
        """
        return self.attention.sampling_points(inputs_q, reference_points, spatial_shapes, self)


class WindowCalls:
    """The method of `DCNv3` and `DCNv4`."""

    window: Any

    def __call__(self, inputs: jax.Array) -> jax.Array:
        """Applies the layer.

        Args:
          inputs: images [..., H, W, features] with any number of batch dimensions, also none.

        Returns:
          An array of the same shape.

        Raises:
          ValueError: inputs of another shape.
          TypeError: inputs that are no array, or not real.
        """
        return self.window(inputs, self)
