"""Records `tests/data/grids.npz`: `torch.nn.functional.grid_sample` in one, two, three dimensions.

Images are [N, C, ...], as torch has them; those of one dimension are torch's of a height of 1, all
of whose points are at that height. Grids reach beyond the images.
"""

# pyright: reportMissingImports=false
import itertools

import numpy as np
import torch
from support.paths import DATA

from recording.files import run

# Shapes of images and of points, and methods.
KINDS = (
    ((2, 3, 5, 7), (4, 3), ("bicubic",)),
    ((1, 8, 1, 6), (9,), ("bicubic",)),
    ((2, 1, 4, 1), (2, 5), ("bicubic",)),
    ((2, 3, 7), (5,), ("bilinear", "nearest", "bicubic")),
    ((2, 2, 3, 4, 5), (3, 1, 2), ("bilinear", "nearest")),
    ((1, 1, 4, 1, 3), (7,), ("bilinear", "nearest")),
)
FORMATS = {1: "NCW", 2: "NCHW", 3: "NCDHW"}


def make() -> dict[str, np.ndarray]:
    arrays, index = {}, 0
    for shape, outer, methods in KINDS:
        for method, padding, corners in itertools.product(
            methods, ("zeros", "border", "reflection"), (False, True)
        ):
            config = method, padding, corners
            arrays |= {f"case{index}/{k}": v for k, v in call(index, shape, outer, *config).items()}
            arrays[f"case{index}/config"] = np.array(
                [method, padding, "1" if corners else "0", FORMATS[len(shape) - 2]]
            )
            index += 1
    return arrays


def call(seed, shape, outer, method, padding, corners) -> dict[str, np.ndarray]:
    """A call's arrays."""
    random, dims = np.random.default_rng(seed), len(shape) - 2
    x = torch.from_numpy(random.standard_normal(shape)).requires_grad_()
    grid = random.uniform(-1.7, 1.7, (shape[0], *outer, dims))
    grid = torch.from_numpy(grid).requires_grad_()
    # torch has images, and as many dimensions of points as of images.
    images, points = x, grid
    if dims == 1:
        images, points = x[:, :, None], torch.cat([grid, torch.zeros_like(grid)], -1)
    while points.ndim < images.ndim:
        points = points[:, None]
    y = torch.nn.functional.grid_sample(images, points, method, padding, corners)
    y = y.reshape(*y.shape[:2], *outer)
    grad_y = random.standard_normal(tuple(y.shape))
    dx, dgrid = torch.autograd.grad(y, (x, grid), torch.from_numpy(grad_y))
    found = {"x": x, "grid": grid, "y": y, "dx": dx, "dgrid": dgrid}
    return {"grad_y": grad_y, **{k: v.detach().numpy() for k, v in found.items()}}


if __name__ == "__main__":
    run("grids.npz", make, DATA)
