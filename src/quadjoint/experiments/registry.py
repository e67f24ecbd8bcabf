"""The experiments by name. A new one is a module with the members of `Experiment` and a line here."""

from __future__ import annotations

import importlib
from typing import Any, Protocol, cast

from quadjoint.experiments.config import Choice, RunConfig
from quadjoint.experiments.training import Context

_MODULES = {
    "toy-gradient": "toy_gradient",
    "memory": "memory",
    "nested-spheres": "nested_spheres",
    "sines": "sines",
    "images": "images",
    "ou": "ou",
    "crossing": "crossing",
}
NAMES = tuple(_MODULES)


class Experiment(Protocol):
    """What the module of an experiment offers."""

    NAME: str
    METHODS: tuple[str, ...]

    @property
    def Config(self) -> type[RunConfig]: ...

    def grid(self, choice: Choice) -> list[Any]:
        """The runs of a preset, with what the user chose differently."""

    def run(self, config: Any, context: Context) -> dict[str, Any]:
        """One run to its end; what it returns goes into the record as ``result``."""


def experiment(name: str) -> Experiment:
    if name not in _MODULES:
        raise ValueError(f"there is no experiment {name!r}; choose one of {', '.join(NAMES)} or all")
    return cast(Experiment, importlib.import_module(f"quadjoint.experiments.{_MODULES[name]}"))
