"""Suggestions for unknown keyword arguments, by the names that other libraries have for them."""

import difflib
import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

__all__ = ["explain_keywords", "unknown_keywords"]

Function = TypeVar("Function", bound=Callable[..., Any])

_WEIGHT = {"weight": "it is read off the shape of weight"}
_INPUTS = {"parent": "it is read off the shape of the inputs"}  # only Linen's layers have a parent
_OFFSET = {"offset": "it is read off the shape of offset"}
_WEIGHTS = {"attention_weights": "it is read off the shape of attention_weights"}
_NO_NEED: Mapping[str, str] = dict.fromkeys(("x", "value", "inputs_v"), "nothing needs it here")
_QUERY = {name: f"it is added to {name} before the call" for name in ("inputs_q", "query")}
_MASK = "padding_mask is True where values count as zeros: the inverse of Hugging Face's, but in "

# Words of torchvision, PyTorch, mmcv, ONNX, TensorFlow and of our layers that mean the same, each
# with what is true of functions that have none of them but a certain other argument.
_SYNONYMS: tuple[tuple[str, Mapping[str, str]], ...] = (
    ("x input inputs image images X lhs", {}),
    ("value inputs_v input_flatten encoder_hidden_states values", {}),
    ("query inputs_q hidden_states queries", {}),
    ("position_embeddings query_pos", _QUERY),
    ("padding_mask key_padding_mask input_padding_mask", {}),
    ("attention_mask", {"padding_mask": _MASK + "Mask2Former and OneFormer"}),
    ("a A lhs mat1", {}),
    ("b B rhs mat2 other", {}),
    ("weight weights kernel filter filters W rhs", {}),
    ("bias use_bias B", {}),
    ("offset offsets", {"offset_mask": "it is the first part of offset_mask"}),
    ("mask masks modulation", {"offset_mask": "it is the last part of offset_mask"}),
    ("kernel_size kernel_shape kernel", _WEIGHT),
    ("strides stride window_strides", {}),
    ("padding pad pads", {}),
    ("dilation dilations dilation_rate kernel_dilation rhs_dilation", {}),
    ("groups group num_groups feature_group_count n_weight_grps", _WEIGHT),
    ("offset_groups offset_group deform_groups deformable_groups n_offset_grps", _OFFSET),
    ("in_features in_channels channels", _WEIGHT | _INPUTS),
    ("out_features out_channels features filters", _WEIGHT),
    ("features channels in_features query_size d_model embed_dim embed_dims", {}),
    ("num_heads n_heads heads", _WEIGHTS),
    ("num_levels n_levels levels", _WEIGHTS),
    ("num_points points n_points num_points_list", _WEIGHTS),
    ("spatial_shapes value_spatial_shapes input_spatial_shapes spatial_shapes_list", {}),
    ("im2col_step level_start_index value_level_start_index input_level_start_index", _NO_NEED),
    ("sampling_locations locations", {}),
    ("attention_weights weights", {}),
    ("method mode interpolation", {}),
    ("use_mask modulated modulation", {}),
    ("data_format data_layout layout", {}),
    ("activation act_layer", {}),
    ("transpose_a transA trans_a", {}),
    ("transpose_b transB trans_b", {}),
    ("key rngs", {}),
)


def explain_keywords(function: Function) -> Function:
    """Decorates what is called: its TypeError for an unknown keyword argument explains it.

    It is a function, a method or a class. Name, docstring and signature stay, and so does all else
    that is raised. A class stays the same object, with another `__init__`.
    """
    decorated: Any = function
    if isinstance(function, type):
        _, *known = inspect.signature(decorated.__init__).parameters
        decorated.__init__ = _explained(decorated.__init__, function.__name__, known)
        return decorated
    known = [*inspect.signature(function).parameters]
    if known[0] == "self":
        return _explained(decorated, function.__name__, known[1:], is_method=True)
    return _explained(decorated, function.__name__, known)


def unknown_keywords(name: str, known: Sequence[str], given: Iterable[str]) -> TypeError | None:
    """The error of a call with keyword arguments that a function doesn't have.

    Args:
      name: the name of the function.
      known: the names of its arguments.
      given: the keywords of the call.

    Returns:
      None where all are known.
    """
    hints = {word: _hint(word, known) for word in given if word not in known}
    if not hints:
        return None
    parts = [f"no argument {word!r}{': ' if hint else ''}{hint}" for word, hint in hints.items()]
    if not all(hints.values()):
        parts.append(f"its arguments are {', '.join(known)}")
    return TypeError(f"{name}() has {'; '.join(parts)}")


def _explained(function: Any, name: str, known: Sequence[str], is_method: bool = False) -> Any:
    @functools.wraps(function)
    def explained(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except TypeError:
            # Python raises it before anything of the function runs, if a keyword is unknown.
            called = f"{type(args[0]).__name__}.{name}" if is_method else name
            error = unknown_keywords(called, known, kwargs)
            if error is None:
                raise
        raise error

    return explained


def _hint(word: str, known: Sequence[str]) -> str:
    """What is said of an unknown word; empty where there is nothing to say."""
    meanings = [(words.split(), notes) for words, notes in _SYNONYMS if word in words.split()]
    for words, notes in meanings:
        hints = [f"it is called {ours} here" for ours in words if ours in known]
        if hints := hints + [note for other, note in notes.items() if other in known]:
            return hints[0]
    # A word that is known elsewhere isn't misspelt.
    close = [] if meanings else difflib.get_close_matches(word, known, 1, 0.7)
    return f"the nearest is {close[0]}" if close else ""
