"""Records `tests/data/basicvsr_pp.npz`: a small BasicVSR++, whole."""

# pyright: reportMissingImports=false
import numpy as np
from support.paths import DATA

from recording.basicvsr_pp_modules import CONSTANTS, BasicVSRPlusPlus
from recording.files import record, run

CONFIG = {
    "mid_channels": 8,
    "num_blocks": 1,
    "outer_blocks": 1,
    "high_channels": 8,
    "deform_groups": 4,
    "max_residue_magnitude": 3,
    "flow_widths": [4, 8, 4, 4],
}
# SPyNet enlarges both before it halves them five times, by different factors.
SIZE = (6, 33)
FLOW_SCALE = 1.5
# A weight of each part; where parts are alike, of one that much comes after, or before.
WEIGHTS = (
    "spynet.basic_module.0.basic_module.0.conv.bias",
    "spynet.basic_module.5.basic_module.4.conv.weight",
    "feat_extract.main.0.weight",
    "deform_align.backward_1.weight",
    "deform_align.forward_2.conv_offset.0.weight",
    "backbone.backward_2.main.2.0.conv1.weight",
    "reconstruction.main.2.0.conv2.bias",
    "upsample1.upsample_conv.weight",
    "conv_last.bias",
)


def state(key: str, array: np.ndarray) -> np.ndarray:
    """The constants as they are, and flows of a few pixels that differ from each other."""
    for name, values in CONSTANTS.items():
        if key == f"spynet.{name}":
            return np.array(values, np.float32).reshape(array.shape)
    if key.startswith("spynet."):
        return array * np.float32(0.1 if key.endswith("bias") else FLOW_SCALE)
    return array


def make() -> dict[str, np.ndarray]:
    frames = np.random.default_rng(0).random((2, 3, 3, *SIZE), np.float32)
    return record(
        "BasicVSRPlusPlus/small", BasicVSRPlusPlus, CONFIG, {"lqs": frames},
        weights=WEIGHTS, state=state,
    )  # fmt: skip


if __name__ == "__main__":
    run("basicvsr_pp.npz", make, DATA)
