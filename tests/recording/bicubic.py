"""Records `tests/data/bicubic.npz`: `torch.nn.functional.grid_sample` with mode "bicubic".

Images are [N, C, H, W], as torch has them; grids reach beyond them.
"""

# pyright: reportMissingImports=false
import itertools

import numpy as np
import torch
from support.paths import DATA

from recording.files import run

SHAPES = (((2, 3, 5, 7), (4, 3)), ((1, 8, 1, 6), (9,)), ((2, 1, 4, 1), (2, 5)))


def make() -> dict[str, np.ndarray]:
    arrays, modes = {}, itertools.product(("zeros", "border", "reflection"), (False, True))
    for index, ((shape, outer), (padding, corners)) in enumerate(itertools.product(SHAPES, modes)):
        random = np.random.default_rng(index)
        x = torch.from_numpy(random.standard_normal(shape)).requires_grad_()
        grid = random.uniform(-1.7, 1.7, (shape[0], *outer, 2)[:4])
        grid = torch.from_numpy(grid).requires_grad_()
        # torch has two dimensions of points.
        points = grid if grid.ndim == 4 else grid[:, None]
        y = torch.nn.functional.grid_sample(x, points, "bicubic", padding, corners)
        y = y.reshape(*y.shape[:2], *outer)
        grad_y = random.standard_normal(tuple(y.shape))
        dx, dgrid = torch.autograd.grad(y, (x, grid), torch.from_numpy(grad_y))
        found = {"x": x, "grid": grid, "y": y, "dx": dx, "dgrid": dgrid}
        arrays |= {f"case{index}/{k}": v.detach().numpy() for k, v in found.items()}
        arrays[f"case{index}/grad_y"] = grad_y
        config = np.array(["bicubic", padding, "1" if corners else "0", "NCHW"])
        arrays[f"case{index}/config"] = config
    return arrays


if __name__ == "__main__":
    run("bicubic.npz", make, DATA)
