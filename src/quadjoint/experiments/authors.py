"""The authors' own code beside ours, from a folder that the user names.

github.com/a-norcliffe/torch_gq_adjoint belongs to Norcliffe and Deisenroth; nothing of it is here. Where the user has
it, its three methods are run on the same models: ``paper:gq``, ``paper:adjoint`` and ``paper:seminorm``.
"""

from __future__ import annotations

import hashlib
import importlib
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import Tensor, nn

from quadjoint.experiments.faults import Refusal

PACKAGE = "torch_gq_adjoint"
METHODS = ("paper:gq", "paper:adjoint", "paper:seminorm")


def require(folder: Path) -> Path:
    """The folder, made absolute; refused if the package is not in it."""
    if not (folder / PACKAGE / "__init__.py").is_file():
        raise Refusal(
            f"there is no {PACKAGE} in {folder}; clone https://github.com/a-norcliffe/{PACKAGE} and name its folder"
        )
    return folder.resolve()


def load(folder: Path | None = None) -> ModuleType:
    """The package: of the folder, or from the Python path if none is named."""
    if folder is None:
        return importlib.import_module(PACKAGE)
    folder = require(folder)
    sys.path.insert(0, str(folder))
    try:
        library = importlib.import_module(PACKAGE)
    finally:
        sys.path.pop(0)
    if not Path(str(library.__file__)).is_relative_to(folder):
        raise Refusal(f"{PACKAGE} was loaded from another place than {folder} before: {library.__file__}")
    return library


def fingerprint(folder: Path) -> str:
    """Twelve digits that tell versions of the code apart: of the SHA-256 sum of its files."""
    digest = hashlib.sha256()
    for path in sorted((folder / PACKAGE).rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


class Counted(nn.Module):
    """Dynamics with the counter ``nfe``, which their code asks for (and sets), and one that nobody sets."""

    def __init__(self, f: nn.Module) -> None:
        super().__init__()
        self.f, self.nfe, self.calls = f, 0, 0

    def forward(self, t: Tensor, y: Tensor) -> Tensor:
        self.nfe += 1
        self.calls += 1
        out: Tensor = self.f(t, y)
        return out


@dataclass
class Evaluations:
    """What can be known of a solve by their code: evaluations of f, those of the backward pass once it has run."""

    method: str
    f: Counted
    forward_evaluations: int

    @property
    def backward_evaluations(self) -> int:
        return self.f.calls - self.forward_evaluations


def solve(f: nn.Module, y0: Tensor, t: Tensor, *, method: str, tolerance: float) -> tuple[Tensor, Evaluations]:
    """The states at times t by one of `METHODS`, with the settings of the paper: dopri5 and C = 0.1."""
    library, counted = load(), Counted(f)
    settings: dict[str, Any] = {"method": "dopri5", "rtol": tolerance, "atol": tolerance}
    t = t.to(y0)
    if method == "paper:gq":
        ys = library.odeint_adjoint_gq(counted, y0, t, gtol=0.1, **settings)
    elif method == "paper:adjoint":
        ys = library.odeint_adjoint(counted, y0, t, **settings)
    elif method == "paper:seminorm":
        options = {"norm": library.make_seminorm(y0)}
        ys = library.odeint_adjoint(counted, y0, t, adjoint_options=options, **settings)
    else:
        raise ValueError(f"the authors' code has no method {method!r}; choose one of {', '.join(METHODS)}")
    return ys, Evaluations(method, counted, counted.calls)
