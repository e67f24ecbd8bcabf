"""Random forward solves against SciPy at tight tolerances: methods, options, states, times, dense output.

A case is named by its seed, the number in brackets. Many more are drawn with ``-m slow``.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy.integrate import solve_ivp
from torch import Tensor

import quadjoint as qj
from trust.random_problems import Case, State, draw_case, parts

FEW, MANY = 80, 2000

# Options of a method, and the error that is allowed in units of the size of the solution (at least one).
Setting = tuple[dict[str, Any], float]
RTOL = {"dopri5": 1e-8, "tsit5": 1e-8, "dopri8": 1e-8, "bosh3": 1e-6, "adaptive_heun": 1e-5}
FIXED = {"rk4": 1e-5, "heun3": 1e-4, "midpoint": 5e-3, "heun2": 5e-3, "euler": 0.1}  # with steps of 0.05 at most
MULTISTEP = {"explicit_adams": 1e-4, "implicit_adams": 1e-4}
SCIPY = ("RK45", "DOP853", "Radau", "BDF", "LSODA", "RK23")


def draw_setting(draw: random.Random, case: Case) -> Setting:
    kind = draw.choice(["adaptive"] * 5 + ["fixed"] * 3 + ["multistep", "scipy", "alf"])
    if case.t.ndim == 2 and kind not in ("adaptive", "fixed"):
        kind = "adaptive"
    if kind == "fixed":
        method = draw.choice(list(FIXED))
        return {"method": method, "options": {"step_size": draw.choice([0.05, 0.03, 0.021])}}, FIXED[method]
    if kind == "multistep":
        method = draw.choice(list(MULTISTEP))
        # Of Adams' explicit methods those of order 12, the default as in torchdiffeq, are not stable at such steps.
        options: dict[str, Any] = {"step_size": 0.02, "max_order": 6}
        return {"method": method, "options": options, "rtol": 1e-8, "atol": 1e-9}, MULTISTEP[method]
    if kind == "scipy":
        options = {"solver": draw.choice(SCIPY if not parts(case.y0)[0].is_complex() else ("RK45", "DOP853", "BDF"))}
        return {"method": "scipy_solver", "options": options, "rtol": 1e-7, "atol": 1e-9}, 1e-4
    if kind == "alf":
        return {"method": "alf", "rtol": 1e-4, "atol": 1e-5}, 1e-2
    method = draw.choice(list(RTOL))
    options = draw.choice([{}, {}, {"controller": "pi"}, {"first_step": 1e-3}, {"max_step": 0.07}, {"safety": 0.5}])
    if case.t.ndim == 1 and draw.random() < 0.2:
        first, last = float(case.t[0]), float(case.t[-1])
        options = {**options, draw.choice(["step_t", "jump_t"]): [first + 0.37 * (last - first)]}
    rtol = RTOL[method]
    return {"method": method, "rtol": rtol, "atol": rtol, "options": options}, 1e3 * rtol


def reference(case: Case, times: np.ndarray, sample: int | None = None) -> Callable[[np.ndarray], np.ndarray]:
    """The flat states between the first and the last of ``times``, by SciPy; of one sample where each has its own."""
    start = [part if sample is None else part[sample : sample + 1] for part in parts(case.y0)]
    shapes = [part.shape for part in start]
    sizes = [part.numel() for part in start]
    y0 = torch.cat([part.reshape(-1) for part in start]).numpy()

    def f(t: float, flat: np.ndarray) -> np.ndarray:
        pieces = torch.as_tensor(np.ascontiguousarray(flat)).split(sizes)
        y: Any = tuple(piece.reshape(shape) for piece, shape in zip(pieces, shapes, strict=True))
        y = tuple(part.clone().requires_grad_() for part in y)
        out: State = case.f(torch.tensor(t, dtype=torch.float64), y if len(y) > 1 else y[0])
        return torch.cat([part.detach().reshape(-1) for part in parts(out)]).numpy()

    solved = solve_ivp(f, (times[0], times[-1]), y0, method="DOP853", dense_output=True, rtol=1e-11, atol=1e-12)
    assert solved.success
    return lambda t: np.asarray(solved.sol(t).T)


def flat(ys: State) -> np.ndarray:
    """States at K times as (K, n)."""
    return torch.cat([part.detach().reshape(len(part), -1) for part in parts(ys)], dim=1).numpy()


def compare(found: np.ndarray, exact: np.ndarray, allowed: float, words: Callable[[], str]) -> None:
    size = max(1.0, float(np.abs(exact).max()))
    error = float(np.abs(found - exact).max()) / size
    assert error < allowed, f"error {error:.1e}, allowed {allowed:.0e}: {words()}"


def check(seed: int) -> None:
    draw, case = random.Random(1_000_003 * seed + 3), draw_case(seed)
    settings, allowed = draw_setting(draw, case)

    def words() -> str:
        return f"{case}; {settings}"

    if case.t.ndim == 2:
        if "coupling none" not in str(case):
            return check_shared_clock(case, settings, allowed, words)
        with torch.no_grad():
            ys = qj.odeint(case.f, case.y0, case.t, gradient="direct", **settings)
        assert isinstance(ys, Tensor) and isinstance(case.y0, Tensor)
        for sample in draw.sample(range(len(case.y0)), k=min(3, len(case.y0))):
            times = case.t[sample].numpy()
            compare(flat(ys[:, sample]), reference(case, times, sample)(times), allowed, words)
        return None
    with torch.no_grad():
        sol = qj.solve(case.f, case.y0, case.t, gradient="direct", **settings)
    exact = reference(case, case.t.numpy())
    compare(flat(sol.ys), exact(case.t.numpy()), allowed, words)
    asked = case.t[0] + (case.t[-1] - case.t[0]) * torch.tensor([0.0, 0.21, 0.5, 0.83, 1.0], dtype=torch.float64)
    compare(flat(sol(asked)), exact(asked.numpy()), allowed, words)
    return None


def check_shared_clock(case: Case, settings: dict[str, Any], allowed: float, words: Callable[[], str]) -> None:
    """Samples that influence each other have one time; with equal rows, times per sample are times of all."""
    rows = case.t[:1].expand_as(case.t)
    with torch.no_grad():
        ys = qj.odeint(case.f, case.y0, rows, gradient="direct", **settings)
    times = case.t[0].numpy()
    compare(flat(ys), reference(case, times)(times), allowed, words)


@pytest.mark.parametrize("seed", range(FEW))
def test_random_forward_solves(seed: int) -> None:
    check(seed)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("block", range(FEW, MANY, 120))
def test_many_random_forward_solves(block: int) -> None:
    for seed in range(block, block + 120):
        check(seed)
