"""The operations of weighted sums of samples, and their arrays.

`SamplingConfig` names the dimensions. Points have either locations, and perhaps weights, or both in
one packed array.
"""

from ptx.operator import In, Operation, Out

__all__ = [
    "BACKWARD_POINTS",
    "BACKWARD_SAMPLES",
    "BACKWARD_VALUE",
    "FORWARD",
    "GRAD_POINTS",
    "GRAD_VALUE",
    "GRAD_Y",
    "POINTS",
    "VALUE",
    "Y",
]

VALUE, GRAD_VALUE = In("value", "n s m d"), Out("grad_value", "n s m d")
Y, GRAD_Y = Out("y", "n q m d"), In("grad_y", "n q m d")
POINTS = (
    In("locations", "n q m t k", "location_type", unless="packed"),
    In("weights", "n q m t", "weight_type", flag="use_weights"),
    In("packed", "n q p", "location_type", flag="packed"),
)
GRAD_POINTS = (
    Out("grad_locations", "n q m t k", "location_type", unless="packed"),
    Out("grad_weights", "n q m t", "weight_type", flag="use_weights"),
    Out("grad_packed", "n q p", "location_type", flag="packed"),
)

FORWARD = Operation("sampling_forward", (VALUE, *POINTS), (Y,))
BACKWARD_VALUE = Operation("sampling_backward_value", (*POINTS, GRAD_Y), (GRAD_VALUE,))
BACKWARD_POINTS = Operation("sampling_backward_points", (VALUE, *POINTS, GRAD_Y), GRAD_POINTS)
# Both at once: one loop of XLA's program, two kernels on a GPU.
BACKWARD_SAMPLES = Operation(
    "sampling_backward_samples", BACKWARD_POINTS.operands, (GRAD_VALUE, *GRAD_POINTS)
)
