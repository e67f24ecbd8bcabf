"""The grids of fixed steps."""

from __future__ import annotations

import itertools
import math
from typing import Any

import torch
from torch import Tensor

from quadjoint.solver.spec import InitialValue


def positive(name: str, value: Any, *, zero: bool = False) -> float:
    """The value of an option that must be positive, or, with ``zero``, not negative."""
    number = float(value)
    if not (number > 0 or (zero and number == 0)):
        raise ValueError(f"options[{name!r}] must be {'at least 0' if zero else 'positive'}; got {value}.")
    return number


def make_grid(options: dict[str, Any], problem: InitialValue, stops: tuple[float, ...] = ()) -> Tensor:
    """The grid of a fixed-step method as a tensor: the observation times unless an option says otherwise.

    Steps end at the times ``stops`` as well.
    """
    step_size, constructor = options.get("step_size"), options.get("grid_constructor")
    if step_size is not None and constructor is not None:
        raise ValueError("Give options['step_size'] or options['grid_constructor'], not both.")
    if problem.open_end and stops:
        named = "jump_t" if options.get("jump_t") is not None else "step_t"
        raise ValueError(
            f"options[{named!r}] with event_fn needs an adaptive method, or options['horizon'] up to which there is a "
            "grid."
        )
    if problem.open_end and step_size is not None:
        first, last = problem.times[0], problem.times[-1]
        h = math.copysign(positive("step_size", step_size), last - first)
        return torch.tensor([first, first + h], dtype=torch.float64)
    grid = problem.t
    if constructor is not None:
        made = constructor(problem.f, problem.y0, grid)
        grid = _through(grid, made if isinstance(made, Tensor) else torch.as_tensor(made, dtype=torch.float64))
    elif step_size is not None:
        grid = _regular(grid, positive("step_size", step_size))
    grid = _with_stops(grid, stops)
    _check(grid.detach().to("cpu", torch.float64).tolist(), problem.times)
    return grid


def _regular(t: Tensor, h: float) -> Tensor:
    """From t[0] to t[-1] in steps of length h, the last of them shorter."""
    first, last = t.detach()[[0, -1]].tolist()
    length = last - first
    # A last step as short as the rounding of the times is left out.
    rounding = 4 * torch.finfo(t.dtype).eps * max(abs(first), abs(last)) / h
    n = max(1, math.ceil(abs(length) / h - max(1e-9, rounding)))
    steps = torch.arange(n, dtype=torch.float64, device="cpu") * math.copysign(h, length)
    return _through(t.double(), torch.cat([t[0].double() + steps.to(t.device), t[-1:].double()]))


def _through(t: Tensor, grid: Tensor) -> Tensor:
    """The same grid, whose points at observation times (to rounding) are those times and move with them."""
    points, times = (x.detach().to("cpu", torch.float64) for x in (grid, t))
    sign = math.copysign(1.0, float(times[-1] - times[0]))
    coarse = [torch.finfo(x.dtype).eps for x in (t, grid) if x.is_floating_point()]
    slack = 4 * max(coarse) * float(times.abs().max())
    near = torch.searchsorted(sign * points, sign * times - slack).clamp(max=len(points) - 1)
    hit = (points[near] - times).abs() <= slack
    index = torch.full((len(points),), -1).index_copy_(0, near[hit], torch.arange(len(times))[hit]).to(t.device)
    return torch.where(index >= 0, t[index.clamp(min=0)], grid.to(t))


def like_grid(times: tuple[float, ...], grid: Tensor) -> tuple[float, ...]:
    """Times in the precision of the grid."""
    return tuple(torch.tensor(times, dtype=torch.float64).to(grid.dtype).tolist())


def _with_stops(grid: Tensor, stops: tuple[float, ...]) -> Tensor:
    """The grid with those of further times that lie inside of it, at which steps are to end as well."""
    if not stops:
        return grid
    sign = 1.0 if grid[-1] >= grid[0] else -1.0
    ends = torch.tensor(like_grid(stops, grid), dtype=grid.dtype, device=grid.device)
    inside = (sign * ends > sign * grid.detach()[0]) & (sign * ends < sign * grid.detach()[-1])
    ends = ends[inside].unique()
    if not grid.requires_grad and len(grid) > 2:  # points beside a stop, to rounding in float32, are moved onto it
        apart = (grid[1:-1, None] - ends).abs()
        near = apart <= 4 * torch.finfo(torch.float32).eps * grid.abs().max()
        moved = torch.where(near.any(dim=1), ends[near.int().argmax(dim=1)], grid[1:-1]) if len(ends) else grid[1:-1]
        grid = torch.cat([grid[:1], moved, grid[-1:]])
    joined = torch.cat([grid, ends[~torch.isin(ends, grid.detach())]])
    return joined[(sign * joined.detach()).argsort()]


def _check(grid: list[float], times: list[float]) -> None:
    if len(times) < 2:
        return
    sign = math.copysign(1.0, times[-1] - times[0])
    increasing = all(sign * a < sign * b for a, b in itertools.pairwise(grid))
    if not increasing or grid[0] != times[0] or grid[-1] != times[-1]:
        raise ValueError(
            "options['grid_constructor'] must return strictly monotone times from t[0] to t[-1]; "
            f"got {len(grid)} times from {grid[0]:.6g} to {grid[-1]:.6g}."
        )
