"""Records `tests/data/roi_align.npz`: `torchvision.ops.roi_align`.

Images are [N, C, H, W] and boxes [K, 5], as torchvision has them: some boxes reach beyond their
image, some are empty, and some lie outside of it.
"""

# pyright: reportMissingImports=false
import itertools

import numpy as np
import torch
import torchvision
from support.paths import DATA

from recording.files import run

SHAPES = ((2, 3, 8, 10), (3, 2, 5, 1), (1, 5, 1, 12))
SIZES = ((2, 2), (3, 1), (1, 4))


def make() -> dict[str, np.ndarray]:
    arrays = {}
    kinds = itertools.product((False, True), (0, 1, 2, 3), (1.0, 0.5), (0, 1, 2))
    for index, (aligned, ratio, scale, shape) in enumerate(kinds):
        random = np.random.default_rng(index)
        n, _, height, width = SHAPES[shape]
        size = SIZES[(index + index // 3) % 3]
        x = torch.from_numpy(random.standard_normal(SHAPES[shape])).requires_grad_()
        far = np.array([width, height]) / scale
        corners = random.uniform(-0.3, 1.2, (6, 2)) * far
        sides = random.uniform(0.0, 0.9, (6, 2)) * far
        boxes = np.concatenate([corners, corners + sides], -1)
        boxes[0, 2:] = boxes[0, :2]  # empty
        image = random.integers(0, n, (6, 1))
        boxes = np.concatenate([image, boxes], -1)
        y = torchvision.ops.roi_align(x, torch.from_numpy(boxes), size, scale, ratio or -1, aligned)
        grad_y = random.standard_normal(tuple(y.shape))
        (dx,) = torch.autograd.grad(y, (x,), torch.from_numpy(grad_y))
        found = {"x": x.detach(), "y": y.detach(), "dx": dx}
        arrays |= {f"case{index}/{k}": v.numpy() for k, v in found.items()}
        arrays[f"case{index}/boxes"] = boxes
        arrays[f"case{index}/grad_y"] = grad_y
        config = [*map(str, size), str(scale), str(ratio), "1" if aligned else "0"]
        arrays[f"case{index}/config"] = np.array(config)
    return arrays


if __name__ == "__main__":
    run("roi_align.npz", make, DATA)
