"""Wrong arguments that both families of convolution refuse, and how functions are traced."""

import jax
import jax.numpy as jnp

__all__ = ["WRONG_OF_ALL", "spec", "trace"]


def spec(*shape, dtype=jnp.float32):
    """An array that has a shape and a dtype alone."""
    return jax.ShapeDtypeStruct(shape, dtype)


def trace(function, arguments):
    """What a function returns for arguments by name, of which some are a `spec`, as one."""
    arrays = {k: v for k, v in arguments.items() if isinstance(v, jax.ShapeDtypeStruct)}
    rest = {k: v for k, v in arguments.items() if k not in arrays}
    return jax.eval_shape(lambda arrays: function(**arrays, **rest), arrays)


# (arguments, error, message), in place of x [2, 8, 7, 6], weight [3, 3, 3, 4] and bias [4], NHWC.
WRONG_OF_ALL = [
    # rank
    (
        {"x": spec(8, 7, 6)},
        ValueError,
        r"x must have 4 dimensions with data_format 'NHWC', got shape \(8, 7, 6\)",
    ),
    ({"weight": spec(3, 3, 3)}, ValueError, r"weight must have 4 dim.*'NHWC', got .*\(3, 3, 3\)"),
    ({"bias": spec(1, 4)}, ValueError, r"bias must have 1 dim.*\(1, 4\)"),
    # kind and dtype
    ({"x": 1.0}, TypeError, r"x must be an array, got float"),
    ({"weight": [1.0]}, TypeError, r"weight must be an array, got list"),
    ({"x": spec(2, 8, 7, 6, dtype=jnp.int32)}, TypeError, r"x must have one.*float16.*got int32"),
    ({"bias": spec(4, dtype=bool)}, TypeError, r"bias must have one.*got bool"),
    (
        {"weight": spec(3, 3, 3, 4, dtype=jnp.bfloat16)},
        TypeError,
        r"weight must have the dtype of x, float32, got bfloat16",
    ),
    (
        {"bias": spec(4, dtype=jnp.float16)},
        TypeError,
        r"bias must have the dtype of x, float32, got float16",
    ),
    # channels and groups
    ({"x": spec(2, 8, 7, 0)}, ValueError, r"x must have channels, height .*\(2, 8, 7, 0\)"),
    ({"x": spec(2, 0, 7, 6)}, ValueError, r"x must have .*height.*\(2, 0, 7, 6\)"),
    ({"weight": spec(3, 0, 3, 4)}, ValueError, r"weight must have no.*size 0.*\(3, 0, 3, 4\)"),
    (
        {"weight": spec(3, 3, 4, 4)},
        ValueError,
        r"weight .*input channels that divides those of x, 6, got 4 in shape \(3, 3, 4, 4\)",
    ),
    (
        {"weight": spec(3, 3, 3, 5)},
        ValueError,
        r"weight .*output channels.*multiple of the groups, 2 .*got 5 in shape \(3, 3, 3, 5\)",
    ),
    ({"bias": spec(5)}, ValueError, r"bias must have shape \(Co\) = \(4\), got \(5,\)"),
    # options
    ({"strides": 0}, ValueError, r"strides must be positive, got 0"),
    ({"strides": (1, -1)}, ValueError, r"strides must be positive, got \(1, -1\)"),
    ({"strides": (1, 1, 1)}, TypeError, r"strides must be an int or a pair.*\(1, 1, 1\)"),
    ({"strides": 1.5}, TypeError, r"strides must be an int or a pair of ints, got 1\.5"),
    ({"strides": True}, TypeError, r"strides must be an int or a pair of ints, got True"),
    ({"dilation": (0, 1)}, ValueError, r"dilation must be positive, got \(0, 1\)"),
    ({"dilation": "2"}, TypeError, r"dilation must be an int or a pair of ints, got '2'"),
    ({"padding": "FULL"}, ValueError, r"padding must be one of 'SAME'.*got 'FULL'"),
    ({"padding": -1}, ValueError, r"padding must not be negative, got -1"),
    ({"padding": ((1, 1), (0, -2))}, ValueError, r"padding must not be negative, got \(\(1"),
    ({"padding": (1, 1, 1)}, TypeError, r"padding must be 'SAME'.*height.*got \(1, 1, 1\)"),
    ({"padding": 1.0}, TypeError, r"padding must be 'SAME'.*got 1\.0"),
    ({"padding": None}, TypeError, r"padding must be 'SAME'.*got None"),
    # sizes that no program can hold
    ({"strides": 2**31 + 3}, ValueError, r"strides must be at most 1073741824, got 2147483651"),
    ({"dilation": (1, 2**63)}, ValueError, r"dilation must be at most .* got \(1, 9223372036854"),
    ({"padding": ((2**31, 0), (0, 0))}, ValueError, r"padding must be at most .*2147483648, 0"),
    ({"padding": 10**30}, ValueError, r"padding must be at most 1073741824, got 1000"),
    ({"padding": 2**30}, ValueError, r"padding must leave \d+ pixels of an output at most, got 10"),
    ({"data_format": None}, ValueError, r"data_format must be one of .* got None"),
    ({"precision": "exact"}, ValueError, r"precision must be None.*'highest', got 'exact'"),
    # extent
    (
        {"padding": "VALID", "dilation": 4},
        ValueError,
        r"output would have no extent: x .*\(8, 7\).*kernel size \(3, 3\) and dilation \(4, 4\)",
    ),
]
