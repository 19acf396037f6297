"""Deformable convolution as a layer of any library."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, Self

import jax
import jax.numpy as jnp

from oxijax._convolution import PaddingLike, Pads, parse_padding, parse_pair
from oxijax._core.arguments import checks
from oxijax._core.primitive.explicit import reshape
from oxijax._deform_conv import deform_conv
from oxijax._layers.arguments import Named, as_images, parse_divisor
from oxijax._layers.batch import Batch
from oxijax._layers.convolution import over_batches

__all__ = ["Geometry", "Prediction", "deform_conv_nhwc"]


@dataclasses.dataclass(frozen=True)
class Geometry:
    """The static description of a convolution; its padding may be the name of a rule."""

    in_features: int
    features: int
    kernel_size: tuple[int, int]
    strides: tuple[int, int]
    padding: str | Pads
    dilation: tuple[int, int]
    groups: int
    use_bias: bool

    @classmethod
    def parse(
        cls, in_features: Named, features: Named, kernel_size: Any, strides: Named,
        padding: PaddingLike, dilation: Named, groups: Named, use_bias: Any,
    ) -> Self:  # fmt: skip
        """The description of a layer with these arguments, which are checked."""
        divisor, inputs, outputs = parse_divisor(*groups, in_features, features)
        one = (1, 1)
        pads = parse_padding(padding, one, one, one, one)
        return cls(
            inputs,
            outputs,
            parse_pair("kernel_size", kernel_size),
            parse_pair(*strides),
            padding.upper() if isinstance(padding, str) else pads,
            parse_pair(*dilation),
            divisor,
            checks.parse_bool("use_bias", use_bias),
        )


@dataclasses.dataclass(frozen=True)
class Prediction:
    """The rule that makes offsets and the mask of a call from a predictor's output.

    The output's last dimension has OG*K*2 offsets, in the order that `oxijax.deform_conv` has, and
    then, where there is a mask, OG*K logits, in the order of its mask.

    Attributes:
      taps: the number K of the kernel's taps.
      offset_groups: the number OG of offset groups.
      use_mask: whether there are logits.
      mask_scale: the factor of a logit's sigmoid: 1, as in the paper, or 2, which makes the mask
        exactly 1 at a logit of 0.
      max_residue: what is added to a flow is this times the tanh of an offset; None for the offset.
      max_offset: offsets are clamped to plus and minus this; None for no bound.
    """

    taps: int
    offset_groups: int
    use_mask: bool
    mask_scale: int
    max_residue: float | None
    max_offset: float | None

    @classmethod
    def parse(
        cls, geometry: Geometry, in_features: str, offset_groups: Any, use_mask: Any,
        predictor: Any, mask_scale: Any, max_residue: Any, max_offset: Any,
    ) -> Self:  # fmt: skip
        """The rule of a layer with these arguments, which are checked.

        `in_features` is the library's name of the number of input channels.
        """
        groups, _ = parse_divisor(
            "offset_groups", offset_groups, (in_features, geometry.in_features)
        )
        if isinstance(predictor, str):
            checks.check_choice("predictor", predictor, ("conv",))
        elif predictor is not None and not callable(predictor):
            raise TypeError(
                "predictor must be 'conv', None or a module or function, "
                f"got {checks.shown(predictor)}"
            )
        use_mask = checks.parse_bool("use_mask", use_mask)
        if checks.parse_number("mask_scale", mask_scale) not in (1, 2):
            raise ValueError(f"mask_scale must be 1 or 2, got {checks.shown(mask_scale)}")
        bounds = []
        for name, bound in (("max_residue", max_residue), ("max_offset", max_offset)):
            if bound is not None:
                bound = checks.parse_number(name, bound)
                if bound <= 0:
                    raise ValueError(f"{name} must be positive, got {bound}")
            bounds.append(bound)
        return cls(math.prod(geometry.kernel_size), groups, use_mask, int(mask_scale), *bounds)

    @property
    def channels(self) -> int:
        """The number of channels of the predictor's output."""
        return self.offset_groups * self.taps * (3 if self.use_mask else 2)

    def samples(
        self, predictor: Callable[[], Any] | None, offset_inputs: Any, flow: Any, offset: Any,
        mask: Any, dtype: Any,
    ) -> tuple[jax.Array, jax.Array | None]:  # fmt: skip
        """The offsets and the mask of a call, channels last: what is given, or what is predicted.

        Args:
          predictor: makes the predictor's output, if the layer has a predictor.
          offset_inputs: the call's argument.
          flow: the call's argument, channels last.
          offset: the call's argument, channels last.
          mask: the call's argument, channels last.
          dtype: the dtype of what is predicted.
        """
        if offset is not None:
            for name, value in (("offset_inputs", offset_inputs), ("flow", flow)):
                if value is not None:
                    raise ValueError(f"{name} must be None where offset is given, got an array")
            if mask is not None and not self.use_mask:
                raise ValueError("mask must be None with use_mask=False, got an array")
            offset = checks.as_float_array("offset", offset)
            return offset, None if mask is None else checks.as_float_array("mask", mask)
        if mask is not None:
            raise ValueError("mask must be None where offset is not given, got an array")
        if predictor is None:
            raise ValueError("offset must be given with predictor=None, got None")
        prediction = predictor()
        shape = getattr(prediction, "shape", ())
        if not shape or shape[-1] != self.channels:
            got = checks.shown(prediction) if not shape else f"{shape[-1]} in shape {shape}"
            kinds = "offsets and logits" if self.use_mask else "offsets"
            raise ValueError(f"predictor must have {self.channels} channels of {kinds}, got {got}")
        return self._split(prediction.astype(dtype), flow)

    def samples_of_images(
        self, predictor: Any, features: int | None, inputs: jax.Array, offset_inputs: Any,
        *others: Any,
    ) -> tuple[jax.Array, jax.Array | None]:  # fmt: skip
        """The offsets and the mask of a call with images [..., H, W, C].

        Args:
          predictor: the layer's predictor, or None.
          features: the number of features that a convolution of [N, H, W, C] reads; None for a
            predictor that takes what it is given.
          inputs: the call's images.
          offset_inputs: the call's argument.
          *others: the further arguments of `samples`.
        """

        def predict() -> Any:
            source = inputs
            if offset_inputs is not None:
                source = as_images("offset_inputs", offset_inputs, features)
            return (predictor if features is None else over_batches(predictor))(source)

        return self.samples(None if predictor is None else predict, offset_inputs, *others)

    def _split(self, prediction: jax.Array, flow: Any) -> tuple[jax.Array, jax.Array | None]:
        offset, logits = jnp.split(prediction, [2 * self.offset_groups * self.taps], axis=-1)
        if self.max_residue is not None:
            offset = self.max_residue * jnp.tanh(offset)
        if flow is not None:
            offset = self._add_flow(offset, flow)
        if self.max_offset is not None:
            offset = jnp.clip(offset, -self.max_offset, self.max_offset)
        return offset, self.mask_scale * jax.nn.sigmoid(logits) if self.use_mask else None

    def _add_flow(self, offset: jax.Array, flow: Any) -> jax.Array:
        flow = checks.as_float_array("flow", flow)
        flows, rest = divmod(flow.shape[-1] if flow.ndim else 0, 2)
        if flow.shape[:-1] != offset.shape[:-1] or rest or not flows or self.offset_groups % flows:
            raise ValueError(
                "flow must have 2*F channels, for a number F that divides the offset groups, "
                f"{self.offset_groups}, at each output pixel, {offset.shape[:-1]}; got "
                f"{flow.shape[-1] if flow.ndim else 0} channels at {flow.shape[:-1]}"
            )
        pixels = offset.shape[:-1]
        pairs = reshape(flow.astype(offset.dtype), (*pixels, flows, 1, 2))
        moved = reshape(offset, (*pixels, flows, offset.shape[-1] // (2 * flows), 2))
        return reshape(moved + pairs[..., ::-1], offset.shape)


def deform_conv_nhwc(
    inputs: jax.Array,
    samples: tuple[jax.Array, jax.Array | None],
    kernel: jax.Array,
    bias: jax.Array | None,
    **options: Any,
) -> jax.Array:
    """`deform_conv` for any number of leading batch dimensions; samples are offsets and mask."""
    batch = Batch.of(inputs, 3)
    for name, array in zip(("offset", "mask"), samples, strict=True):
        if array is not None and array.shape[:-3] != batch.shape:
            raise ValueError(
                f"{name} must have the batch dimensions of inputs, {batch.shape}, before its last "
                f"three, got shape {array.shape}"
            )
    offset, mask = samples
    y = deform_conv(
        batch.merge(inputs),
        batch.merge(offset),
        kernel,
        None if mask is None else batch.merge(mask),
        bias,
        **options,
    )
    return batch.split(y)
