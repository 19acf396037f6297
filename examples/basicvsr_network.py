"""BasicVSR++: video super-resolution with deformable alignment, for pretrained weights too.

Features of frames are handed on along the video four times: backward, forward, and both again. What
comes from the last two frames is aligned with the present one by a deformable convolution, whose
offsets are an optical flow and a predicted residue.

Parts have the names of `BasicVSRPlusPlus` in MMEditing, and `load` reads its weights.

Source: Chan et al., "BasicVSR++: Improving Video Super-Resolution with Enhanced Propagation and
Alignment", 2022.
"""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from spynet import SPyNet, resize, warp

import oxijax.convert
import oxijax.nnx

__all__ = ["BRANCHES", "BasicVSRPlusPlus", "align", "alignment", "load"]

BRANCHES = ("backward_1", "forward_1", "backward_2", "forward_2")
SCALE = 4

leaky_relu = functools.partial(nnx.leaky_relu, negative_slope=0.1)
normal = nnx.initializers.he_normal()
small = nnx.initializers.variance_scaling(0.02, "fan_in", "normal")


def conv(
    inputs: int, outputs: int, rngs: nnx.Rngs,
    kernel_init: nnx.Initializer = normal,
) -> nnx.Conv:  # fmt: skip
    return nnx.Conv(inputs, outputs, (3, 3), kernel_init=kernel_init, rngs=rngs)


class ResidualBlock(nnx.Module):
    """What two convolutions make of an image is added to it."""

    def __init__(self, features: int, rngs: nnx.Rngs):
        self.conv1 = conv(features, features, rngs, small)
        self.conv2 = conv(features, features, rngs, small)

    def __call__(self, x: jax.Array) -> jax.Array:
        return x + self.conv2(nnx.relu(self.conv1(x)))


class ResidualBlocks(nnx.Module):
    """A convolution to so many features, and residual blocks."""

    def __init__(self, inputs: int, features: int, blocks: int, rngs: nnx.Rngs):
        self.main = nnx.Sequential(
            conv(inputs, features, rngs),
            leaky_relu,
            nnx.Sequential(*(ResidualBlock(features, rngs) for _ in range(blocks))),
        )

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.main(x)


class PixelShuffle(nnx.Module):
    """Twice as high and wide: a convolution makes the four pixels of each."""

    def __init__(self, inputs: int, outputs: int, rngs: nnx.Rngs):
        self.upsample_conv = conv(inputs, 4 * outputs, rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = self.upsample_conv(x)
        n, height, width, channels = x.shape
        x = x.reshape(n, height, width, channels // 4, 2, 2)
        return x.transpose(0, 1, 4, 2, 5, 3).reshape(n, 2 * height, 2 * width, channels // 4)


def alignment(
    features: int, offset_groups: int, max_residue: float, rngs: nnx.Rngs, hidden: int | None = None
) -> oxijax.nnx.DeformConv:
    """A deformable convolution of what two frames have, which follows flows.

    Args:
      features: the number of features of each frame, and of the result.
      offset_groups: the first half reads the last frame, the other half that before it.
      max_residue: how far a sample may be from the flow, in pixels.
      rngs: random keys.
      hidden: features of the predictor; None for as many as of a frame.
    """
    inputs, hidden = 3 * features + 4, features if hidden is None else hidden
    sizes = (inputs, hidden, hidden, hidden)
    parts = [part for size in sizes for part in (conv(size, hidden, rngs), leaky_relu)]
    parts[-2:] = [conv(hidden, 27 * offset_groups, rngs, nnx.initializers.zeros)]
    return oxijax.nnx.DeformConv(
        *(2 * features, features, 3),
        offset_groups=offset_groups,
        mask_scale=1,
        max_residue=max_residue,
        predictor=nnx.Sequential(*parts),
        rngs=rngs,
    )


def align(
    layer: oxijax.nnx.DeformConv,
    current: jax.Array,
    before: jax.Array,
    before_last: jax.Array,
    flow: jax.Array,
    flow_2: jax.Array,
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    """What the last two frames have, where the current one has it; and offsets and mask.

    Args:
      layer: made by `alignment`.
      current: features of the current frame [N, H, W, features].
      before: features of the last frame.
      before_last: features of the frame before that.
      flow: [N, H, W, 2], (x, y) in pixels, from the current frame to the last one.
      flow_2: from the current frame to that before the last.
    """
    seen = [warp(before, flow), current, warp(before_last, flow_2), flow, flow_2]
    inputs = jnp.concatenate([before, before_last], axis=-1)
    flows = jnp.concatenate([flow, flow_2], axis=-1)
    offset, mask = layer.offsets(inputs, jnp.concatenate(seen, axis=-1), flow=flows)
    assert mask is not None
    return layer(inputs, offset=offset, mask=mask), (offset, mask)


class BasicVSRPlusPlus(nnx.Module):
    """Videos [N, T, H, W, 3] with values from 0 to 1 to videos [N, T, 4 H, 4 W, 3].

    Args:
      mid_channels: the channels of all features.
      num_blocks: residual blocks of each branch.
      outer_blocks: residual blocks before the branches, and behind them.
      high_channels: the channels of the features of the large images.
      offset_groups: the offset groups of the alignments; they divide 2 * mid_channels.
      max_residue: how far an alignment may be from the flow, in pixels.
      flow_widths: the widths of `SPyNet`.
      unroll: whether the program has each step along a video for itself, and no loop. That takes
        longer to compile, and is faster on CPUs, where XLA's convolutions are slow in loops.
      rngs: random keys.
    """

    def __init__(
        self,
        mid_channels: int = 64,
        num_blocks: int = 7,
        *,
        outer_blocks: int = 5,
        high_channels: int = 64,
        offset_groups: int = 16,
        max_residue: float = 10.0,
        flow_widths: Sequence[int] = (32, 64, 32, 16),
        unroll: bool = False,
        rngs: nnx.Rngs,
    ):
        features = mid_channels
        self.unroll = unroll
        self.spynet = SPyNet(flow_widths, rngs=rngs)
        self.feat_extract = ResidualBlocks(3, features, outer_blocks, rngs)
        self.deform_align = nnx.Dict(
            {branch: alignment(features, offset_groups, max_residue, rngs) for branch in BRANCHES}
        )
        self.backbone = nnx.Dict(
            {
                branch: ResidualBlocks((2 + i) * features, features, num_blocks, rngs)
                for i, branch in enumerate(BRANCHES)
            }
        )
        self.reconstruction = ResidualBlocks(5 * features, features, outer_blocks, rngs)
        self.upsample1 = PixelShuffle(features, features, rngs)
        self.upsample2 = PixelShuffle(features, high_channels, rngs)
        self.conv_hr = conv(high_channels, high_channels, rngs)
        self.conv_last = conv(high_channels, 3, rngs, small)

    def __call__(self, frames: jax.Array) -> jax.Array:
        """The large frames."""
        flows = self.flows(frames)
        features = [each_frame(self.feat_extract, frames)]
        for branch in BRANCHES:
            features.append(self.propagate(branch, features, flows[branch.split("_")[0]]))
        high = each_frame(self.upsample, jnp.concatenate(features, axis=-1))
        size = [SCALE * n for n in frames.shape[2:4]]
        return high + each_frame(functools.partial(resize, size=size), frames)

    def flows(self, frames: jax.Array) -> dict[str, jax.Array]:
        """The flows [N, T-1, H, W, 2] from frames to those after them, and from these back.

        The former are for the way backward, the latter for the way forward.
        """
        first, second = frames[:, :-1], frames[:, 1:]
        pairs = jnp.concatenate([first, second]), jnp.concatenate([second, first])
        backward, forward = jnp.split(each_frame(self.spynet, *pairs), 2)
        return {"backward": backward, "forward": forward}

    def propagate(self, branch: str, features: list[jax.Array], flows: jax.Array) -> jax.Array:
        """The features [N, T, H, W, mid_channels] that a branch adds to those that there are."""
        layer, backbone = self.deform_align[branch], self.backbone[branch]
        reverse = branch.startswith("backward")
        # By frames, in the order in which they come.
        order = slice(None, None, -1 if reverse else 1)
        current = jnp.moveaxis(features[0], 1, 0)[order]
        others = jnp.moveaxis(jnp.concatenate([features[0], *features[1:]], -1), 1, 0)[order]
        steps = jnp.moveaxis(flows, 1, 0)[order]

        def advance(known: jax.Array, aligned: jax.Array) -> jax.Array:
            return aligned + backbone(jnp.concatenate([known, aligned], axis=-1))

        def step(carry: tuple[jax.Array, ...], now: tuple[jax.Array, ...]) -> Any:
            before, before_last, flow_before, has_two = carry
            current, known, flow = now
            # From here to the frame before the last, where there is one.
            flow_2 = has_two * (flow + warp(flow_before, flow))
            aligned, _ = align(layer, current, before, before_last, flow, flow_2)
            after = advance(known, aligned)
            return (after, before, flow, jnp.ones_like(has_two)), after

        zeros = jnp.zeros_like(current[0])
        first = advance(others[0], zeros)
        start = first, zeros, jnp.zeros_like(steps[0]), jnp.zeros((), flows.dtype)
        _, rest = jax.lax.scan(step, start, (current[1:], others[1:], steps), unroll=self.unroll)
        found = jnp.concatenate([first[None], rest])[order]
        return jnp.moveaxis(found, 0, 1)

    def upsample(self, x: jax.Array) -> jax.Array:
        """What is added to the enlarged images."""
        x = self.reconstruction(x)
        x = leaky_relu(self.upsample1(x))
        x = leaky_relu(self.upsample2(x))
        return self.conv_last(leaky_relu(self.conv_hr(x)))


def each_frame(function: Any, *videos: jax.Array) -> jax.Array:
    """A function of images [N, ...], of each frame of videos [N, T, ...]."""
    n, t = videos[0].shape[:2]
    y = function(*(video.reshape(n * t, *video.shape[2:]) for video in videos))
    return y.reshape(n, t, *y.shape[1:])


def load(
    network: BasicVSRPlusPlus, weights: Mapping[str, Any], prefix: str = "generator."
) -> BasicVSRPlusPlus:
    """A network with the weights of MMEditing's, by their names there.

    Args:
      network: it says what is expected and remains as it is.
      weights: the state_dict of a checkpoint.
      prefix: the prefix of the network's names in it; others are left alone.
    """
    constants = {f"{prefix}spynet.{name}" for name in ("mean", "std")}
    weights = {name: array for name, array in weights.items() if name not in constants}
    return oxijax.convert.from_torch(network, weights, prefix=prefix)
