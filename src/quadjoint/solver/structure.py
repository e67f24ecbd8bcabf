"""What holds the tensors of a state: tuples, named tuples, lists and dicts, nested in any way."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

_KINDS: tuple[type, ...] = (tuple, list, OrderedDict, dict)


@dataclass(frozen=True)
class Structure:
    """A container of type ``kind`` whose entries have ``keys`` and ``children``; a tensor if ``kind`` is None.

    Two states of the same structure have equal ones, which can be hashed. Subclasses of tuple, list and dict count as
    these, except named tuples and ``OrderedDict``, which are kept.

    >>> Structure.of({"x": 1.0, "v": (2.0, 3.0)}).paths("y")
    ["y['x']", "y['v'][0]", "y['v'][1]"]
    """

    kind: type | None = None
    keys: tuple[Hashable, ...] = ()
    children: tuple[Structure, ...] = ()

    @classmethod
    def of(cls, x: Any) -> Structure:
        if _is_named(x):
            return cls(type(x), x._fields, tuple(cls.of(value) for value in x))
        kind = next((kind for kind in _KINDS if isinstance(x, kind)), None)
        if kind is None:
            return cls()
        keys = tuple(x) if isinstance(x, dict) else tuple(range(len(x)))
        return cls(kind, keys, tuple(cls.of(value) for value in (x.values() if isinstance(x, dict) else x)))

    def flatten(self, x: Any, says: str = "", path: str = "", *, spread: bool = False) -> list[Any]:
        """The leaves of ``x``, which must have this structure: the same entries, sequences being tuples or lists.

        ``says`` begins the sentence about one that has not ("f returned"). With ``spread``, a leaf stands for all the
        leaves of the state at its place.
        """
        if self.kind is None:
            return [x]
        if spread and not isinstance(x, Mapping | list | tuple):
            return [x] * len(self.paths(""))
        leaves: list[Any] = []
        for entry, key, child in zip(self._entries(x, says, path), self.keys, self.children, strict=True):
            leaves += child.flatten(entry, says, path + self._step(key), spread=spread)
        return leaves

    def _entries(self, x: Any, says: str, path: str) -> list[Any]:
        place = f" at {path}" if path else ""
        if not self._is_mapping:
            if not isinstance(x, tuple | list) or len(x) != len(self.keys):
                raise ValueError(f"{says} {_describe(x)}{place}, where the state has {self.describe()}.")
            return list(x)
        if not isinstance(x, Mapping):
            raise ValueError(f"{says} {_describe(x)}{place}, where the state has {self.describe()}.")
        for key in self.keys:
            if key not in x:
                raise ValueError(f"{says} no entry {key!r}{place}, where the state has {self.describe()}.")
        for key in x:
            if key not in self.keys:
                raise ValueError(f"{says} an entry {key!r}{place}, where the state has {self.describe()}.")
        return [x[key] for key in self.keys]

    def unflatten(self, leaves: Iterator[Any]) -> Any:
        """A state of this structure made of the next leaves."""
        if self.kind is None:
            return next(leaves)
        values = [child.unflatten(leaves) for child in self.children]
        if self._is_mapping:
            return self.kind(zip(self.keys, values, strict=True))
        return self.kind._make(values) if hasattr(self.kind, "_make") else self.kind(values)

    def paths(self, name: str) -> list[str]:
        """How each leaf is written in Python, if the state is called ``name``."""
        if self.kind is None:
            return [name]
        pairs = zip(self.keys, self.children, strict=True)
        return [path for key, child in pairs for path in child.paths(name + self._step(key))]

    def describe(self) -> str:
        """For messages."""
        if self.kind is None:
            return "a tensor"
        if self._is_mapping:
            return f"a dict of {', '.join(map(repr, self.keys))}"
        return f"a {self.kind.__name__} of {len(self.keys)}"

    @property
    def _is_mapping(self) -> bool:
        return self.kind is not None and issubclass(self.kind, dict)

    def _step(self, key: Hashable) -> str:
        return f".{key}" if hasattr(self.kind, "_make") else f"[{key!r}]"


def map_leaves(function: Callable[[Any], Any], state: Any) -> Any:
    """The same structure with ``function`` of every leaf.

    >>> map_leaves(abs, {"x": -1, "v": [-2, 3]})
    {'x': 1, 'v': [2, 3]}
    """
    structure = Structure.of(state)
    return structure.unflatten(function(leaf) for leaf in structure.flatten(state))


def _is_named(x: Any) -> bool:
    return isinstance(x, tuple) and hasattr(x, "_fields") and hasattr(x, "_make")


def _describe(x: Any) -> str:
    if isinstance(x, Mapping | list | tuple):
        return Structure.of(x).describe()
    return f"a {type(x).__name__}" if x is not None else "None"
