"""Records modules of PyTorch: weights, inputs, results and gradients, in a file or against one.

Of a case named KIND/NAME a file has, in float64 or in float32 where it holds the same numbers:

    KIND/NAME/config            the module's arguments, as JSON
    KIND/NAME/state/KEY         its state
    KIND/NAME/inputs/NAME       what it is called with
    KIND/NAME/y                 its result
    KIND/NAME/grad_y            the gradient of the result
    KIND/NAME/gradients/NAME    that of an input
    KIND/NAME/gradients/KEY     that of a weight, where it is recorded
"""

# pyright: reportMissingImports=false
import argparse
import json
import pathlib
import sys
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

__all__ = ["record", "run"]

TOLERANCE = 1e-9  # of a relative Frobenius norm: sums in another order, in float64


def run(name: str, make: Callable[[], dict[str, np.ndarray]], data: pathlib.Path) -> None:
    """Writes what `make` records to a file, or compares both if the command line says so."""
    parser = argparse.ArgumentParser(description=f"Records {name}.")
    parser.add_argument("--check", action="store_true", help="compare with what is there")
    check = parser.parse_args().check
    torch.set_num_threads(2)
    arrays, path = make(), data / name
    if not check:
        np.savez_compressed(path, allow_pickle=False, **arrays)
        print(f"{path}: {len(arrays)} arrays, {path.stat().st_size:,} bytes")
        return
    with np.load(path) as file:
        problems = _differences(dict(file), arrays)
    print("\n".join(problems) or f"{path}: {len(arrays)} arrays come again")
    sys.exit(bool(problems))


def record(
    case: str,
    kind: Callable[..., Any],
    config: Mapping[str, Any],
    inputs: Mapping[str, np.ndarray],
    *,
    weights: Sequence[str] = (),
    state: Callable[[str, np.ndarray], np.ndarray] = lambda key, array: array,
) -> dict[str, np.ndarray]:
    """Makes a module with random weights, and records what it does with the inputs.

    Args:
      case: its name, which also seeds the random numbers.
      kind: the module's class.
      config: its arguments.
      inputs: by the names of the arguments of its call; numbers of float32, or bools.
      weights: those whose gradients are recorded too.
      state: makes an array of its state of a random one.
    """
    random = np.random.default_rng(zlib.crc32(case.encode()))
    module = kind(**config).double().eval()
    arrays = {
        key: state(key, _random_state(random, key, tuple(value.shape)))
        for key, value in module.state_dict().items()
    }
    module.load_state_dict({key: torch.from_numpy(array) for key, array in arrays.items()})
    operands = {
        name: torch.from_numpy(array)
        if array.dtype == bool
        else torch.from_numpy(array.astype(np.float64)).requires_grad_()
        for name, array in inputs.items()
    }
    y = module(**operands)
    grad_y = random.standard_normal(tuple(y.shape)).astype(np.float32)
    parameters = dict(module.named_parameters())
    moving = {name: value for name, value in operands.items() if value.requires_grad}
    moving |= {key: parameters[key] for key in weights}
    # Zeros where the result does not depend on an operand, as on locations that are rounded.
    gradients = torch.autograd.grad(
        *(y, list(moving.values()), torch.from_numpy(grad_y).double()),
        allow_unused=True,
        materialize_grads=True,
    )
    found = {
        **{f"state/{key}": array for key, array in arrays.items()},
        **{f"inputs/{name}": array for name, array in inputs.items()},
        "config": np.array(json.dumps(config)),
        "y": y.detach().numpy(),
        "grad_y": grad_y,
        **{f"gradients/{k}": g.numpy() for k, g in zip(moving, gradients, strict=True)},
    }
    return {f"{case}/{name}": array for name, array in found.items()}


def _random_state(random: np.random.Generator, key: str, shape: tuple[int, ...]) -> np.ndarray:
    """An entry of a state, in which nothing is what it would be initialised with."""
    if key.endswith("num_batches_tracked"):
        return np.array(100)
    normal = random.standard_normal(shape)
    if len(shape) > 1:
        array = normal * np.prod(shape[1:]) ** -0.5
    elif key.endswith(("weight", "running_var")):  # of a normalization
        array = random.uniform(0.5, 2, shape)
    else:
        array = 0.5 * normal
    return array.astype(np.float32)


def _differences(there: Mapping[str, np.ndarray], now: Mapping[str, np.ndarray]) -> list[str]:
    problems = [f"{name}: only in the file" for name in sorted(there.keys() - now.keys())]
    problems += [f"{name}: not in the file" for name in sorted(now.keys() - there.keys())]
    for name in sorted(now.keys() & there.keys()):
        old, new = there[name], now[name]
        if (old.shape, old.dtype) != (new.shape, new.dtype):
            problems.append(f"{name}: {old.dtype}{old.shape}, now {new.dtype}{new.shape}")
        elif old.dtype.kind != "f":
            if not np.array_equal(old, new):
                problems.append(f"{name}: {old}, now {new}")
        elif not np.linalg.norm(new - old) <= TOLERANCE * np.linalg.norm(old):
            error = np.linalg.norm(new - old) / np.linalg.norm(old)
            problems.append(f"{name}: relative error {error:.3g}")
    return problems
