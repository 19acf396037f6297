"""The parts of models, by the paths of attributes that lead to them."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

__all__ = ["parts_of"]


def parts_of(
    model: Any, kinds: Any, children: Callable[[Any], Mapping[Any, Any]]
) -> Iterator[tuple[str, Any, str]]:
    """The parts of a model, each with its path and the first path that it is at.

    Args:
      model: the model, which is a part too: its path is empty.
      kinds: the types of parts, a class or a union.
      children: a function of a part: what is in it, by name. Lists and dictionaries are searched
        too.
    """
    first: dict[int, str] = {}

    def search(path: str, part: Any, parents: tuple[int, ...]) -> Iterator[tuple[str, Any, str]]:
        within: Mapping[Any, Any] = {}
        if isinstance(part, kinds):
            if id(part) in parents:
                return
            yield path, part, first.setdefault(id(part), path)
            within = children(part)
        elif isinstance(part, Mapping):
            within = part
        elif isinstance(part, list | tuple):
            within = dict(enumerate(part))
        for name in sorted(within, key=lambda name: (isinstance(name, str), name)):
            inner = f"{path}.{name}" if path else f"{name}"
            yield from search(inner, within[name], (*parents, id(part)))

    return search("", model, ())
