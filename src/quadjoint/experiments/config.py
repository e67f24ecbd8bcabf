"""What a run is: a frozen dataclass, a stable key made from it, and the choice a user makes of runs."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from quadjoint.experiments.names import PRESETS

# The methods that every experiment compares.
METHODS = ("direct", "adjoint", "seminorm", "gq-paper", "gq", "discrete", "auto")


@dataclass(frozen=True)
class RunConfig:
    """What every run has. Experiments add their own fields; all of them are numbers, words or None."""

    method: str = "gq"
    width: int = 20
    seed: int = 0
    device: str = "cpu"


@dataclass(frozen=True)
class Choice:
    """What the user asked for; None leaves it to the preset."""

    preset: str = "quick"
    methods: tuple[str, ...] | None = None
    widths: tuple[int, ...] | None = None
    seeds: tuple[int, ...] | None = None
    device: str = "cpu"
    authors: bool = False  # whether the authors' own code takes part

    def __post_init__(self) -> None:
        if self.preset not in PRESETS:
            raise ValueError(f"there is no preset {self.preset!r}; choose one of {', '.join(PRESETS)}")

    def pick_methods(self, known: Sequence[str]) -> list[str]:
        """The chosen methods that this experiment knows, in the experiment's order."""
        return [m for m in known if self.methods is None or m in self.methods]

    def cells(
        self, seeds: Mapping[int, int], *, pick: Callable[[Iterable[int]], int] | None = None
    ) -> list[tuple[int, int]]:
        """Widths with their seeds: those of the plan, given as the number of seeds of each width, unless chosen.

        Where the plan has one width of many, as a study, ``pick`` says which of the chosen ones it is.
        """
        widths = list(seeds) if self.widths is None else [pick(self.widths)] if pick else list(self.widths)
        most = max(seeds.values(), default=0)
        return [
            (width, seed)
            for width in widths
            for seed in (range(seeds.get(width, most)) if self.seeds is None else self.seeds)
        ]


@dataclass(frozen=True)
class Plan:
    """The size of a preset: the number of seeds of each width, and the epochs; the same of the second study."""

    seeds: Mapping[int, int]
    epochs: int
    study: Mapping[int, int] = field(default_factory=dict)
    study_epochs: int = 0


def as_dict(config: RunConfig) -> dict[str, Any]:
    """The config as JSON can hold it."""
    return dataclasses.asdict(config)


def from_dict(kind: type[RunConfig], fields: Mapping[str, Any]) -> RunConfig:
    """The config back from a stored line; a field that this version does not know is an error in words."""
    known = {field.name for field in dataclasses.fields(kind)}
    if unknown := sorted(set(fields) - known):
        raise ValueError(f"{kind.__module__} knows no setting {', '.join(unknown)}")
    return kind(**fields)


def run_key(experiment: str, config: RunConfig) -> str:
    """A name for the run that is the same on every machine and readable as a file name.

    >>> run_key("sines", RunConfig(method="gq", width=200, seed=1))
    'sines-gq-w200-s1-8f401a760f7e'
    """
    text = json.dumps([experiment, as_dict(config)], sort_keys=True, separators=(",", ":"))
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    return f"{experiment}-{config.method}-w{config.width}-s{config.seed}-{digest}"


def learning_rate(table: Mapping[int, float], width: int) -> float:
    """The paper's learning rate for this width; between its widths, that of the next smaller one.

    >>> learning_rate({5: 1e-2, 100: 1e-3}, 50)
    0.01
    """
    below = [w for w in table if w <= width]
    return table[max(below) if below else min(table)]
