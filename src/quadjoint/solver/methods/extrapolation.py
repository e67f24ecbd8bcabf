"""The polynomial of an implicit step, moved on into the next one, where the iteration begins."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from quadjoint.solver.protocols import Time

FURTHEST = 5.0  # ratio of step sizes up to which the step before is extrapolated


def extrapolation(c: np.ndarray, dt: Time, before: Time) -> Any:
    """Weights of z_j of the step before in a prediction of z_i: its polynomial through 0 and all z_j, moved on."""
    ratio = dt / before
    if not isinstance(ratio, Tensor):
        if not 0.0 < ratio <= FURTHEST:
            return None
        return _moved(c, 1.0 + c * ratio) - _moved(c, np.ones(1))
    ratio = ratio.reshape(-1, 1).double()  # one for every sample
    weights = torch.as_tensor(_moved(c, np.ones(1))).to(ratio)
    theta = 1.0 + torch.tensor(c).to(ratio) * ratio
    powers = torch.stack([theta**k for k in range(1, len(c) + 1)], dim=-1)
    return powers @ torch.as_tensor(np.linalg.inv(np.power.outer(c, np.arange(1, len(c) + 1)))).to(ratio) - weights


def _moved(c: np.ndarray, theta: np.ndarray) -> np.ndarray:
    """Lagrange polynomials on 0 and ``c``, but the first, at ``theta``: shape (len(theta), len(c))."""
    powers = np.arange(1, len(c) + 1)
    return np.asarray(np.power.outer(theta, powers) @ np.linalg.inv(np.power.outer(c, powers)))
