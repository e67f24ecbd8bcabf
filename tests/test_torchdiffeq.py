"""The drop-in against torchdiffeq itself: same call, same result, for every shared method and option."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torchdiffeq
from torch import Tensor, nn

import problems
import quadjoint as qj
from quadjoint import torchdiffeq as dropin
from quadjoint.errors import forget_warnings

ADAPTIVE = ["dopri5", "dopri8", "bosh3", "fehlberg2", "adaptive_heun"]
FIXED = ["euler", "midpoint", "heun2", "heun3", "rk4"]
ADAMS = ["explicit_adams", "implicit_adams", "fixed_adams"]
TIMES = torch.tensor([0.2, 0.5, 0.61, 1.3, 1.7], dtype=torch.float64)


@pytest.fixture(autouse=True)
def _warnings_speak_again() -> Iterator[None]:
    forget_warnings()
    yield
    forget_warnings()


def both(problem: nn.Module, t: Tensor, **settings: Any) -> tuple[problems.State, problems.State]:
    """Solutions by quadjoint and by torchdiffeq."""
    with torch.no_grad():
        return tuple(m.odeint(problem, problem.y0, t, **settings) for m in (dropin, torchdiffeq))


@pytest.mark.parametrize("name", ["odeint", "odeint_adjoint", "odeint_event", "odeint_dense"])
def test_signatures_are_the_same(name: str) -> None:
    ours, theirs = (inspect.signature(getattr(m, name)).parameters for m in (dropin, torchdiffeq))
    assert [n for n in ours if n != "gradient"] == list(theirs)
    for key, parameter in theirs.items():
        assert ours[key].kind == parameter.kind
        assert key == "odeint_interface" or ours[key].default == parameter.default


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("name", problems.PROBLEMS)
@pytest.mark.parametrize("method", FIXED)
def test_fixed_steps_are_the_same_numbers(method: str, name: str, backwards: bool) -> None:
    t = TIMES.flip(0) if backwards else TIMES
    problem = problems.PROBLEMS[name]()
    for options in (None, {"step_size": 0.07}, {"step_size": 0.07, "interp": "linear"}, {"perturb": True}):
        ours, theirs = both(problem, t, method=method, options=options)
        assert problems.error(ours, theirs) < 1e-13


@pytest.mark.parametrize("method", FIXED)
def test_cubic_interpolation_is_the_same_to_its_order(method: str) -> None:
    """Both are of order three or better; quadjoint's uses the stages that the step has already."""
    problem, errors = problems.Growth(), []
    for h in (0.08, 0.04):
        ours, theirs = both(problem, TIMES, method=method, options={"step_size": h, "interp": "cubic"})
        errors.append(problems.error(ours, theirs))
    assert errors[0] < 5e-3 and errors[1] < errors[0] / 1.9 + 1e-13


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("perturb", [False, True])
@pytest.mark.parametrize("method", [*FIXED, "explicit_adams"])
def test_perturbed_ends_of_steps(method: str, perturb: bool, backwards: bool) -> None:
    """y' = 1 up to t = 1/2 and -1 from there: a step that ends or starts there must see its own side."""

    def f(t: Tensor, y: Tensor) -> Tensor:
        return torch.where(t < 0.5, 1.0, -1.0).to(y).expand_as(y)

    t = torch.tensor([0.0, 0.25, 0.5, 0.75, 1.0], dtype=torch.float64)
    t = t.flip(0) if backwards else t
    y0 = torch.zeros(1, dtype=torch.float64)
    ours, theirs = (m.odeint(f, y0, t, method=method, options={"perturb": perturb}) for m in (dropin, torchdiffeq))
    if method == "explicit_adams":  # its starting steps differ
        ours, theirs = ours[:3], theirs[:3]
    assert problems.error(ours, theirs) < 1e-12
    if perturb and method != "explicit_adams":
        assert float(ours[-1]) == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("backwards", [False, True])
def test_own_grid(backwards: bool) -> None:
    t = TIMES.flip(0) if backwards else TIMES

    def grid(f: Any, y0: Tensor, t: Tensor) -> Tensor:
        return torch.cat([t[:1], torch.stack([0.7 * t[0] + 0.3 * t[-1], 0.1 * t[0] + 0.9 * t[-1]]), t[-1:]])

    ours, theirs = both(problems.Oscillator(), t, method="rk4", options={"grid_constructor": grid})
    assert problems.error(ours, theirs) < 1e-13


def test_a_constructor_of_grids_sees_a_tuple_state_as_one_vector() -> None:
    seen = []

    def grid(f: Any, y0: Tensor, t: Tensor) -> Tensor:
        seen.append((y0, f(t[0], y0)))
        return torch.linspace(float(t[0]), float(t[-1]), 7, dtype=t.dtype)

    y0 = (torch.ones(2, dtype=torch.float64), torch.full((1, 3), 2.0, dtype=torch.float64))
    f = lambda t, y: (-y[0], y[1].sin())  # noqa: E731
    ours, theirs = (
        m.odeint(f, y0, TIMES, method="rk4", options={"grid_constructor": grid}) for m in (dropin, torchdiffeq)
    )
    assert problems.error(ours, theirs) < 1e-13
    assert all(torch.equal(a, b) for a, b in zip(*seen, strict=True))


@pytest.mark.parametrize("method", ADAMS)
def test_multistep_methods(method: str) -> None:
    """The starting steps differ: quadjoint takes one more of order four, and is more accurate by it."""
    problem = problems.Logistic()
    for max_order, tol in ((4, 1e-5), (6, 1e-6), (8, 1e-6)):
        t = torch.linspace(0.2, 1.7, 76, dtype=torch.float64)
        options = {"max_order": max_order} | ({} if method == "explicit_adams" else {"max_iters": 20})
        ours, theirs = both(problem, t, method=method, options=options)
        exact = problem.exact(problem.y0, t)
        assert problems.error(ours, theirs) < tol
        assert problems.error(ours, exact) < 1.1 * problems.error(theirs, exact) + 1e-12


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("name", problems.PROBLEMS)
@pytest.mark.parametrize("method", ADAPTIVE)
def test_adaptive_solves_agree_to_their_tolerance(method: str, name: str, backwards: bool) -> None:
    """Steps end on the observations, because torchdiffeq's interpolants of dopri8 and bosh3 are not that accurate."""
    t = TIMES.flip(0) if backwards else TIMES
    tol = {"fehlberg2": 1e-6, "adaptive_heun": 1e-5}.get(method, 1e-8)
    ours, theirs = both(problems.PROBLEMS[name](), t, method=method, rtol=tol, atol=tol, options={"step_t": t})
    assert problems.error(ours, theirs) < 300 * tol


class Recorder(nn.Module):
    """A problem whose steps of all sizes are recorded by callbacks."""

    def __init__(self, tuples: bool = False) -> None:
        super().__init__()
        self.tuples = tuples
        self.calls: list[tuple[str, float, float]] = []

    def forward(self, t: Tensor, y: problems.State) -> problems.State:
        if self.tuples:
            x, v = y
            return v, -(x**3) + torch.cos(4 * t)
        return -3 * y + torch.sin(8 * t)

    def callback_step(self, t: Tensor, y: problems.State, dt: Tensor) -> None:
        assert isinstance(y, tuple) == self.tuples
        self.calls.append(("step", float(t), float(dt)))

    def callback_accept_step(self, t: Tensor, y: problems.State, dt: Tensor) -> None:
        self.calls.append(("accept", float(t), float(dt)))

    def callback_reject_step(self, t: Tensor, y: problems.State, dt: Tensor) -> None:
        self.calls.append(("reject", float(t), float(dt)))


OPTIONS: dict[str, dict[str, Any]] = {
    "none": {},
    "first_step": {"first_step": 0.31},
    "safety": {"safety": 0.7},
    "ifactor": {"ifactor": 2.0},
    "dfactor": {"dfactor": 0.6, "first_step": 1.0},
    "min_step": {"min_step": 0.11},
    "max_step": {"max_step": 0.05},
    "norm": {"norm": lambda y: y.abs().max() if isinstance(y, Tensor) else max(part.abs().max() for part in y)},
    "dtype": {"dtype": torch.float64},
    "max_num_steps": {"max_num_steps": 500},
}


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("tuples", [False, True])
@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("method", ["dopri5", "bosh3"])
def test_the_same_steps_are_tried_accepted_and_rejected(
    method: str, option: str, tuples: bool, backwards: bool
) -> None:
    """Up to the last step, which torchdiffeq takes past the end and quadjoint ends there."""
    y0 = torch.tensor([1.0, 0.2], dtype=torch.float64)
    t = torch.tensor([2.0, 0.0] if backwards else [0.0, 2.0], dtype=torch.float64)
    found, ends = [], []
    for module in (dropin, torchdiffeq):
        f = Recorder(tuples)
        start = (y0, y0.flip(0)) if tuples else y0
        rtol = (1e-4, 1e-3) if tuples else 1e-4
        ends.append(module.odeint(f, start, t, rtol=rtol, atol=1e-5, method=method, options=OPTIONS[option]))
        found.append(list(itertools.takewhile(lambda call: abs(call[1] - float(t[1])) > 1.02 * call[2], f.calls)))
    assert len(found[0]) > 4
    for (kind, *ours), (kind_theirs, *theirs) in zip(*found, strict=True):
        # torchdiffeq holds tolerances of single tensors in float32.
        assert kind == kind_theirs and ours == pytest.approx(theirs, rel=1e-7 if tuples else 1e-9)
    scale = max(float(part.abs().max()) for part in problems.parts(ends[1]))
    assert problems.error(*ends) < (3e-2 if option == "min_step" else 5e-3) * scale


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("option", ["step_t", "jump_t"])
def test_prescribed_times(option: str, backwards: bool) -> None:
    y0 = torch.tensor([1.0, 0.2], dtype=torch.float64)
    t = torch.tensor([2.0, 0.0] if backwards else [0.0, 2.0], dtype=torch.float64)
    options = {option: torch.tensor([0.777, 1.111], dtype=torch.float64)}
    ends, visited = [], []
    for module in (dropin, torchdiffeq):
        f = Recorder()
        ends.append(module.odeint(f, y0, t, options=options, rtol=1e-8))
        visited.append({at for kind, at, _ in f.calls if kind == "accept"})
    assert problems.error(*ends) < 1e-7 * max(1.0, float(ends[1].abs().max()))
    assert all({0.777, 1.111} <= times for times in visited)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64, torch.complex128])
@pytest.mark.parametrize("method", ["dopri5", "rk4"])
def test_dtypes(method: str, dtype: torch.dtype) -> None:
    problem = problems.Spiral(dtype) if dtype.is_complex else problems.Logistic(dtype)
    for t in (TIMES, TIMES.float()):
        ours, theirs = both(problem, t, method=method, rtol=1e-5, atol=1e-5)
        assert ours.dtype == theirs.dtype == dtype
        assert problems.error(ours, theirs) < 1e-4


def test_a_tensor_of_tolerances_has_one_for_each_tensor_of_the_state() -> None:
    class Pair(nn.Module):
        y0 = (torch.ones(2, dtype=torch.float64), torch.ones(3, dtype=torch.float64))

        def forward(self, t: Tensor, y: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
            return -y[0], -20 * y[1]

    loose, tight = torch.tensor([1e-2, 1e-9]), torch.tensor([1e-9, 1e-2])
    for rtol in (loose, tight):
        ours, theirs = both(Pair(), TIMES, rtol=rtol, atol=rtol * 1e-2)
        for mine, other in zip(ours, theirs, strict=True):
            torch.testing.assert_close(mine, other, rtol=1e-6, atol=1e-8)


def test_shapes() -> None:
    growth = problems.Growth()
    growth.y0 = torch.tensor(0.7, dtype=torch.float64)
    for t in (TIMES[:1], TIMES[:2], TIMES):
        for problem in (growth, problems.Oscillator(), problems.Linear()):
            ours, theirs = both(problem, t)
            assert [a.shape for a in problems.parts(ours)] == [b.shape for b in problems.parts(theirs)]


@pytest.mark.parametrize("solver", ["LSODA", "RK45"])
def test_scipy_solver(solver: str) -> None:
    problem = problems.Linear()
    options = {"solver": solver}
    ours = dropin.odeint(problem, problem.y0, TIMES, method="scipy_solver", options=options)
    assert problems.error(ours, problem.exact(problem.y0, TIMES)) < 1e-5
    exact = problems.gradients(problem, problem.exact, TIMES)
    for solve in (dropin.odeint, dropin.odeint_adjoint):
        found = problems.gradients(
            problem, lambda y0, t, s=solve: s(problem, y0, t, method="scipy_solver", options=options), TIMES
        )
        assert problems.agree(found, exact, 1e-4)


def test_options_of_another_method_are_ignored_and_mentioned() -> None:
    problem = problems.Growth()
    with pytest.warns(qj.QuadjointWarning, match=r"\['step_size'\] have no effect with method 'dopri5'"):
        ys = dropin.odeint(problem, problem.y0, TIMES, options={"step_size": 0.1})
    assert problems.error(ys, problem.exact(problem.y0, TIMES)) < 1e-6


def test_the_limit_on_steps_counts_between_outputs() -> None:
    problem, t = problems.Growth(), torch.linspace(0, 3, 31, dtype=torch.float64)
    for module in (dropin, torchdiffeq):
        module.odeint(problem, problem.y0, t, method="bosh3", options={"max_num_steps": 100})
    with pytest.raises(qj.SolveError, match="100 steps"):
        dropin.odeint(problem, problem.y0, t[[0, -1]], method="bosh3", options={"max_num_steps": 100})


def test_dense_output() -> None:
    problem = problems.Growth()
    t0, t1 = TIMES[0], TIMES[-1]
    ours, theirs = (m.odeint_dense(problem, problem.y0, t0, t1) for m in (dropin, torchdiffeq))
    for t in (0.3, 0.9, 1.6):
        point = torch.tensor(t, dtype=torch.float64)
        assert ours(point).shape == theirs(point).shape
        assert problems.error(ours(point), theirs(point)) < 1e-6
    oscillator = problems.Oscillator()
    x, v = dropin.odeint_dense(oscillator, oscillator.y0, 1.7, 0.2, method="rk4", options={"step_size": 0.01})(0.4)
    exact = oscillator.exact(oscillator.y0, torch.tensor([1.7, 0.4], dtype=torch.float64))
    assert problems.error((x, v), (exact[0][1], exact[1][1])) < 1e-3


PROGRAM = """
import torch
from {module} import {imports}

torch.manual_seed(0)
f = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2)).double()

class Dynamics(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net, self.nfe = f, 0

    def forward(self, t, y):
        self.nfe += 1
        return self.net(y ** 3)

model = Dynamics()
y0, t = torch.tensor([[2.0, 0.0]]).double(), torch.linspace(0.0, 2.0, 10).double()
target = torch.stack([torch.cos(t), torch.sin(t)], 1)[:, None]
optimiser = torch.optim.Adam(model.parameters(), 0.02)
losses = []
for _ in range(5):
    optimiser.zero_grad()
    loss = (odeint(model, y0, t, {arguments}) - target).square().mean()
    loss.backward()
    optimiser.step()
    losses.append(loss.item())
"""


@pytest.mark.parametrize("imports", ["odeint", "odeint_adjoint as odeint"])
@pytest.mark.parametrize("arguments", ["", "method='rk4'", "rtol=1e-5, atol=1e-6, method='dopri8'"])
def test_a_program_runs_with_one_line_changed(imports: str, arguments: str) -> None:
    losses = []
    for module in ("quadjoint.torchdiffeq", "torchdiffeq"):
        scope: dict[str, Any] = {}
        exec(PROGRAM.format(module=module, imports=imports, arguments=arguments), scope)
        assert scope["model"].nfe > 0
        losses.append(scope["losses"])
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


@pytest.mark.parametrize(
    "call",
    [
        lambda f, y, t: dropin.odeint(f, y, t.reshape(1, -1)),
        lambda f, y, t: dropin.odeint(f, y, t, method="rk4", event_fn=lambda t, y: t - 1),
        lambda f, y, t: dropin.odeint_adjoint(f, y, t, options={}, adjoint_method="rk4"),
        lambda f, y, t: dropin.odeint(f, y, t, method="nonsense"),
        lambda f, y, t: dropin.odeint(f, y, t[[0, 0]]),
        lambda f, y, t: dropin.odeint(f, y, t, rtol=(1e-3, 1e-3, 1e-3)),
    ],
)
def test_bad_input_is_a_value_error(call: Callable[..., Any]) -> None:
    problem = problems.Oscillator()
    with pytest.raises(ValueError, match=r"^\w"):
        call(problem, problem.y0, TIMES)
