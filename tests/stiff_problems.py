"""Stiff initial value problems with published solutions.

Van der Pol, HIRES and OREGO are those of the Test Set for Initial Value Problem Solvers (Mazzia and Magherini, 2008)
with the reference solutions given there; SciPy's Radau at rtol = 1e-11 agrees to 1e-10. Robertson's is SciPy's alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class StiffProblem:
    f: Callable[[Tensor, Tensor], Tensor]
    y0: list[float]
    end: float
    reference: list[float]
    atol: float  # in parts of rtol


def robertson(t: Tensor, y: Tensor) -> Tensor:
    a, b, c = y.unbind(-1)
    first, second, third = 0.04 * a, 3e7 * b * b, 1e4 * b * c
    return torch.stack([third - first, first - second - third, second], dim=-1)


def van_der_pol(t: Tensor, y: Tensor) -> Tensor:
    x, v = y.unbind(-1)
    return torch.stack([v, 1000.0 * (1.0 - x * x) * v - x], dim=-1)


def hires(t: Tensor, y: Tensor) -> Tensor:
    a, b, c, d, e, g, h, i = y.unbind(-1)
    r = 280.0 * g * i
    return torch.stack(
        [
            -1.71 * a + 0.43 * b + 8.32 * c + 0.0007,
            1.71 * a - 8.75 * b,
            -10.03 * c + 0.43 * d + 0.035 * e,
            8.32 * b + 1.71 * c - 1.12 * d,
            -1.745 * e + 0.43 * g + 0.43 * h,
            -r + 0.69 * d + 1.71 * e - 0.43 * g + 0.69 * h,
            r - 1.81 * h,
            -r + 1.81 * h,
        ],
        dim=-1,
    )


def orego(t: Tensor, y: Tensor) -> Tensor:
    a, b, c = y.unbind(-1)
    return torch.stack([77.27 * (b + a * (1 - 8.375e-6 * a - b)), (c - (1 + a) * b) / 77.27, 0.161 * (a - c)], dim=-1)


PROBLEMS = {
    "robertson": StiffProblem(
        robertson, [1.0, 0.0, 0.0], 1e4, [0.1073004285391, 4.800166972636e-07, 0.8926990914442], 1e-4
    ),
    "van_der_pol": StiffProblem(van_der_pol, [2.0, 0.0], 2000.0, [1.706167732170483, -0.8928097010247975e-3], 1e-3),
    "hires": StiffProblem(
        hires,
        [1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0057],
        321.8122,
        [
            0.7371312573325668e-3,
            0.1442485726316185e-3,
            0.5888729740967575e-4,
            0.1175651343283149e-2,
            0.2386356198831331e-2,
            0.6238968252742796e-2,
            0.2849998395185769e-2,
            0.2850001604814231e-2,
        ],
        1e-3,
    ),
    "orego": StiffProblem(
        orego, [1.0, 2.0, 3.0], 360.0, [0.1000814870318523e1, 0.1228178521549917e4, 0.1320554942846706e3], 1.0
    ),
}
