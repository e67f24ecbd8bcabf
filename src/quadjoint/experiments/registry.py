"""From the name of an experiment to its module. A new one is a module with the members of `Experiment` and a line in
`names`."""

from __future__ import annotations

import importlib
from typing import Any, Protocol, cast

from quadjoint.experiments.config import Choice, RunConfig
from quadjoint.experiments.names import EXPERIMENTS
from quadjoint.experiments.training import Context

NAMES = tuple(EXPERIMENTS)


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
    if name not in EXPERIMENTS:
        raise ValueError(f"there is no experiment {name!r}; choose one of {', '.join(NAMES)} or all")
    return cast(Experiment, importlib.import_module(f"quadjoint.experiments.{name.replace('-', '_')}"))
