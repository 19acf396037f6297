"""Records `tests/data/map_coordinates.npz`: `scipy.ndimage.map_coordinates`, orders 0 and 1.

SciPy's "grid-constant" and "grid-wrap" are what JAX calls "constant" and "wrap". SciPy has no
gradients: that to the input is of what SciPy makes of each of its elements alone.
"""

# pyright: reportMissingImports=false
import itertools

import numpy as np
import scipy.ndimage
from support.paths import DATA

from recording.files import run

MODES = {
    "constant": "grid-constant",
    "nearest": "nearest",
    "wrap": "grid-wrap",
    "mirror": "mirror",
    "reflect": "reflect",
}
SHAPES = ((9,), (5, 8), (4, 6, 3))


def make() -> dict[str, np.ndarray]:
    arrays = {}
    for index, (mode, order, shape) in enumerate(itertools.product(MODES, (0, 1), SHAPES)):
        random = np.random.default_rng(index)
        image, grad_y = random.standard_normal(shape), random.standard_normal((3, 4))
        coordinates = random.uniform(-9, 15, (len(shape), 3, 4))
        cval = float(random.integers(-2, 3)) if mode == "constant" else 0.0

        def found(image, cval=0.0, coordinates=coordinates, order=order, mode=mode):
            return scipy.ndimage.map_coordinates(
                image, coordinates, order=order, mode=MODES[mode], cval=cval, prefilter=False
            )

        each = np.eye(image.size).reshape(-1, *shape)
        gradient = np.array([(grad_y * found(element)).sum() for element in each])
        results = {
            "input": image,
            "coordinates": coordinates,
            "y": found(image, cval),
            "grad_y": grad_y,
            "dinput": gradient.reshape(shape),
        }
        arrays |= {f"case{index}/{k}": v for k, v in results.items()}
        arrays[f"case{index}/config"] = np.array([mode, str(order), str(cval)])
    return arrays


if __name__ == "__main__":
    run("map_coordinates.npz", make, DATA)
