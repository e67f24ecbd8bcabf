"""Features that were right alone and wrong together: each test is a closed form, and once gave another number."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

import quadjoint as qj
from quadjoint import cde

TIGHT = {"rtol": 1e-9, "atol": 1e-9}
BACKWARD = ["direct", "discrete", "gq", "adjoint", "seminorm", "gq-paper", "auto"]
D = torch.float64


def tensor(*values: object, grad: bool = False) -> Tensor:
    return torch.tensor(*values, dtype=D, requires_grad=grad)


def gradients(value: Tensor, *inputs: Tensor, **how: bool) -> list[Tensor]:
    return list(torch.autograd.grad(value.sum(), inputs, **how))


def close(found: Tensor, wanted: object, tolerance: float = 1e-6) -> bool:
    return torch.allclose(found, torch.as_tensor(wanted, dtype=D), rtol=tolerance, atol=tolerance)


# The continuous solution ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gradient", BACKWARD)
def test_own_times_and_own_discontinuities(gradient: str) -> None:
    """y' = -y, whatever is named as a discontinuity: sol(t) is y0 exp(t0 - t), and so is its derivative in y0."""
    t, y0 = tensor([[0.0, 1.0, 2.0], [1.0, 2.0, 5.0]]), tensor([[1.0], [2.0]], grad=True)
    jumps = tensor([[0.5], [2.5]])
    sol = qj.solve(lambda t, y: -y, y0, t, gradient=gradient, options={"jump_t": jumps}, **TIGHT)
    asked = tensor([[0.25, 0.5, 1.0, 2.0], [1.5, 2.0, 2.5, 5.0]])
    decay = (t[:, :1] - asked).exp().T
    found = sol(asked)
    assert close(found[..., 0], y0.detach()[:, 0] * decay)
    (slope,) = gradients(found[1:], y0)
    assert close(slope[:, 0], decay[1:].sum(0))


@pytest.mark.parametrize("gradient", BACKWARD)
def test_states_asked_for_of_samples_with_own_times(gradient: str) -> None:
    """Beside the observations, and without; as many of one sample as of the other, as the shape of t has it."""
    y0, w = tensor([[1.0], [2.0]], grad=True), tensor(1.0, grad=True)
    t, asked = tensor([[0.0, 0.5, 1.0], [1.0, 2.0, 3.0]]), tensor([[0.25, 0.7], [1.5, 3.0]])
    decay = (t[:, :1] - asked).exp().sum(1)
    for seen in (0.0, 1.0):
        sol = qj.solve(lambda t, y: -w * y, y0, t, gradient=gradient, **TIGHT)
        in_y0, in_w = gradients(sol(asked).sum() + seen * sol.ys[-1].sum(), y0, w)
        ends = (t[:, 0] - t[:, -1]).exp()
        assert close(in_y0[:, 0], decay + seen * ends)
        passed, size = asked - t[:, :1], y0.detach()[:, 0]
        wanted = -(passed * (-passed).exp()).sum(1) - seen * (t[:, -1] - t[:, 0]) * ends
        assert close(in_w, (wanted * size).sum())


@pytest.mark.parametrize("create_graph", [False, True])
@pytest.mark.parametrize("independent", [False, True])
@pytest.mark.parametrize("method", ["dopri5", "kvaerno5"])
@pytest.mark.parametrize("gradient", ["direct", "discrete", "gq"])
def test_learnable_times_beside_states_asked_for(
    gradient: str, method: str, independent: bool, create_graph: bool
) -> None:
    """The gradient in the decay w of y(1) + y(1/2) is -exp(-w) - exp(-w/2)/2, whether differentiated again or not."""
    w, t = tensor(1.0, grad=True), tensor([0.0, 1.0], grad=True)
    y0 = torch.ones(1, 1, dtype=D)
    how = {"method": method, "gradient": gradient, "independent": independent, **TIGHT}
    sol = qj.solve(lambda t, y: -w * y, y0, t, **how)
    value = sol.ys[-1].sum() + sol(0.5).sum()
    in_w, in_t = gradients(value, w, t, create_graph=create_graph)
    assert close(in_w, -math.exp(-1.0) - 0.5 * math.exp(-0.5))
    assert close(in_t, [math.exp(-1.0) + math.exp(-0.5), -math.exp(-1.0)])
    if create_graph:
        (second,) = gradients(in_w, w)
        assert close(second, math.exp(-1.0) + 0.25 * math.exp(-0.5), 1e-5)


@pytest.mark.parametrize("create_graph", [False, True])
@pytest.mark.parametrize("gradient", ["direct", "discrete", "gq"])
def test_events_beside_states_asked_for(gradient: str, create_graph: bool) -> None:
    """exp(-w t) falls to 1/5 at log(5)/w."""
    w = tensor(1.0, grad=True)
    sol = qj.solve(
        lambda t, y: -w * y,
        torch.ones(1, dtype=D),
        tensor([0.0, 3.0]),
        event_fn=lambda t, y: y[0] - 0.2,
        gradient=gradient,
        **TIGHT,
    )
    assert sol.event_time is not None
    (found,) = gradients(sol.event_time.sum() + sol(0.5).sum(), w, create_graph=create_graph)
    assert close(found, -math.log(5.0) - 0.5 * math.exp(-0.5))


@pytest.mark.parametrize("second", ["direct", "discrete", "gq", "adjoint"])
@pytest.mark.parametrize("first", ["discrete", "gq", "adjoint"])
def test_a_solve_within_the_backward_pass_of_another(first: str, second: str) -> None:
    """The dynamics of the second solve hold the end of the first where no search for parameters looks."""
    w, t = tensor(1.0, grad=True), tensor([0.0, 1.0])
    a = qj.solve(lambda t, y: -w * y, torch.ones(1, dtype=D), t, gradient=first, **TIGHT)
    hidden = SimpleNamespace(end=a.ys[-1])
    b = qj.odeint(lambda t, y: -hidden.end * y, torch.ones(1, dtype=D), t, gradient=second, **TIGHT)
    assert isinstance(b, Tensor)
    (found,) = gradients(b[-1].sum() + a(0.5).sum(), w)
    end = math.exp(-1.0)  # b ends at exp(-exp(-w))
    assert close(found, end * math.exp(-end) - 0.5 * math.exp(-0.5))


@pytest.mark.parametrize("gradient", BACKWARD[:4])
@pytest.mark.parametrize("own", [False, True])
def test_mixed_derivative_in_a_parameter_and_in_the_time_asked_for(own: bool, gradient: str) -> None:
    """d/dt d/dw of 3/2 exp(-w t) is 3/2 exp(-w t) (w t - 1)."""
    w, at = tensor(0.7, grad=True), tensor(0.37, grad=True)
    t = tensor([[0.0, 1.0]]) if own else tensor([0.0, 1.0])
    sol = qj.solve(lambda t, y: -w * y, tensor([[1.5]]), t, gradient=gradient, **TIGHT)
    (in_w,) = gradients(sol(at), w, create_graph=True)
    (mixed,) = gradients(in_w, at)
    assert close(mixed, 1.5 * math.exp(-0.7 * 0.37) * (0.7 * 0.37 - 1.0), 1e-5)


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("method", ["rk4", "gl4", "alf", "euler", "radauIIA3"])
@pytest.mark.parametrize("gradient", ["direct", "discrete", "auto"])
def test_a_grid_that_moves_with_its_times(gradient: str, method: str, backwards: bool) -> None:
    """States asked for at a fixed time, against differences: in the times, in the initial state and in a parameter."""
    if method == "alf" and gradient == "discrete":
        pytest.skip("alf has no transpose of that kind")
    sign = -1.0 if backwards else 1.0
    options = {"step_size": 0.1}
    asked = sign * tensor([0.13, 0.47, 0.55, 0.95])

    def solve(y0: Tensor, w: Tensor, t: Tensor) -> Tensor:
        sol = qj.solve(lambda t, y: -w * y + t, y0, t, method=method, options=options, gradient=gradient)
        return sol(asked).sum() + 2.0 * sol.ys[-1].sum() + sol.ys[1].sum()

    # No time lies on a point of the grid, where differences would reach into another step.
    inputs = tensor([1.0], grad=True), tensor(0.8, grad=True), (sign * tensor([0.0, 0.43, 0.83, 1.03])).requires_grad_()
    found = gradients(solve(*inputs), *inputs)
    for n, (x, g) in enumerate(zip(inputs, found, strict=True)):
        for k in range(x.numel()):
            step = torch.zeros_like(x).reshape(-1)
            step[k] = 1e-6
            moved = [
                solve(*(y.detach() + s * step.reshape(x.shape) if m == n else y.detach() for m, y in enumerate(inputs)))
                for s in (1.0, -1.0)
            ]
            assert close(g.reshape(-1)[k], (moved[0] - moved[1]) / 2e-6, 1e-5), (n, k)


@pytest.mark.parametrize("limit", [1000, 2000, 4000])
@pytest.mark.parametrize("create_graph", [False, True])
def test_a_memory_limit_with_independent_steps(limit: int, create_graph: bool) -> None:
    """y' = -y^2 from 1 has dy(1)/dy0 = 1/4, however few of the steps are recorded."""
    for gradient in (qj.Direct(memory_limit=limit), qj.Auto(memory_limit=limit)):
        y0 = tensor([[1.0]], grad=True)
        t = tensor([0.0, 1.0])
        sol = qj.solve(lambda t, y: -y * y, y0, t, gradient=gradient, independent=True, **TIGHT)
        (found,) = gradients(sol.ys[-1], y0, create_graph=create_graph)
        assert close(found, [[0.25]])


# Samples that end by themselves ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("create_graph", [False, True])
@pytest.mark.parametrize("on_failure", ["nan", "stop"])
@pytest.mark.parametrize("event", [False, True])
def test_a_failed_sample_leaves_the_gradients_of_others_alone(event: bool, on_failure: str, create_graph: bool) -> None:
    """y' = w y^2 from 1/5 is 1/(5 - w t): 2/9 is its derivative in w at 2, and it is 1/4 at t = 1/w."""
    w, t = tensor(1.0, grad=True), tensor([0.0, 2.0], grad=True)
    y0 = tensor([[0.2], [-1.0]])  # the root of a negative number has a NaN for a derivative
    sol = qj.solve(
        lambda t, y: w * y * y + 0.0 * y.sqrt(),
        y0,
        t,
        independent=True,
        event_fn=(lambda t, y: y[:, 0].sqrt() - 0.5) if event else None,
        options={"on_failure": on_failure},
        **TIGHT,
    )
    if event:
        assert sol.event_time is not None
        (found,) = gradients(sol.event_time[0], w, create_graph=create_graph)
        assert close(found, -1.0)
    else:
        in_w, in_t = gradients(sol.ys[-1, 0], w, t, create_graph=create_graph)
        assert close(in_w, 2.0 / 9.0) and close(in_t, [-1.0 / 9.0, 1.0 / 9.0])


def test_all_columns_of_padding_move_with_the_event() -> None:
    """exp(-w t) falls to 1/5 at log(5)/w, where exp(-2 t) is 5**(-2/w)."""
    w = tensor(1.0, grad=True)
    t = tensor([[0.0, 1.0, 2.0, 3.0], [0.0, 3.0, math.nan, math.nan]])
    sol = qj.solve(
        lambda t, y: torch.stack([-w * y[:, 0], -2.0 * y[:, 1]], 1),
        torch.ones(2, 2, dtype=D),
        t,
        event_fn=lambda t, y: y[:, 0] - 0.2,
        independent=True,
        **TIGHT,
    )
    wanted = 2.0 * math.log(5.0) * 5.0**-2
    for k in (2, 3):
        (found,) = gradients(sol.ys[k, 1, 1], w, retain_graph=True)
        assert close(found, wanted)
    assert close(sol.ts[1, 2:], [math.log(5.0)] * 2)


def test_an_event_keeps_the_precision_of_the_times() -> None:
    """Times of two million in float64 for a state in float32, which has them to an eighth."""
    start, t = 2e6, tensor([2e6, 2e6 + 10.0])
    y0 = torch.ones(1, dtype=torch.float32)
    sol = qj.solve(lambda t, y: -y, y0, t, rtol=1e-5, event_fn=lambda t, y: y[0] - 0.5)
    assert sol.event_time is not None
    assert sol.event_time.dtype == D
    assert abs(float(sol.event_time) - start - math.log(2.0)) < 1e-4
    assert float(sol.ts[-1]) == float(sol.event_time)


def test_as_many_events_as_samples() -> None:
    """Balls thrown from 1 and from 2 with g = 9.81 reach the ground, or a speed of 4, whatever records gradients."""
    y0, t = tensor([[1.0, 0.0], [2.0, 0.0]]), tensor([0.0, 3.0])

    def fall(t: Tensor, y: Tensor) -> Tensor:
        return torch.stack([y[:, 1], torch.full_like(y[:, 1], -9.81)], 1)

    def event(t: Tensor, y: Tensor) -> Tensor:
        return torch.stack([y[:, 0], y[:, 1] + 4.0], 1)

    for grad in (False, True):
        for gradient in ("direct", "discrete", "gq"):
            with torch.set_grad_enabled(grad):
                sol = qj.solve(fall, y0, t, event_fn=event, independent=True, gradient=gradient, **TIGHT)
            assert sol.event_time is not None and close(sol.event_time, [4.0 / 9.81] * 2)


# What else crashed ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gradient", ["direct", "discrete", "gq", "adjoint", "seminorm", "gq-paper"])
def test_a_complex_parameter_beside_a_real_one(gradient: str) -> None:
    """Of a real state, at an odd place among the numbers that are integrated."""
    found = []
    for how in ("direct", gradient):
        c = torch.tensor(0.3 + 0.7j, dtype=torch.complex128, requires_grad=True)
        r = tensor(0.5, grad=True)
        ys = qj.odeint(
            lambda t, y, r=r, c=c: -r * y**2 + (c * y).real,
            torch.ones(2, dtype=D),
            tensor([0.0, 1.0]),
            gradient=how,
            **TIGHT,
        )
        assert isinstance(ys, Tensor)
        found.append(gradients(ys[-1], c, r))
    assert all(torch.allclose(a, b, rtol=1e-6) for a, b in zip(*found, strict=True))


@pytest.mark.parametrize("options", [{"step_size": 0.1}, {"max_step": 0.1}, {"first_step": 0.1}, {"min_step": 0.1}])
def test_a_single_observation_of_every_sample(options: dict[str, float]) -> None:
    t = tensor([[0.0, math.nan], [1.0, math.nan]])
    method = "rk4" if "step_size" in options else "dopri5"
    ys = qj.odeint(lambda t, y: -y, torch.ones(2, 1, dtype=D), t, method=method, options=options)
    assert isinstance(ys, Tensor) and torch.equal(ys, torch.ones(2, 2, 1, dtype=D))


@pytest.mark.parametrize(
    ("method", "rtol"),
    [("radauIIA5", 1e-3), ("radauIIA5", 1e-7), ("kvaerno5", 1e-6), ("kvaerno3", 1e-4), ("trbdf2", 1e-3)],
)
@pytest.mark.parametrize("independent", [False, True])
def test_implicit_steps_are_taken_again_from_checkpoints(method: str, rtol: float, independent: bool) -> None:
    """Newton's iteration begins elsewhere then, and may end elsewhere: f is the same function all the same."""
    t = tensor([0.0, 3.0])
    for seed in range(2):
        torch.manual_seed(seed)
        weights, start = 0.5 * torch.randn(3, 3, dtype=D), torch.randn(4, 3, dtype=D)
        found = []
        for gradient in (qj.DiscreteAdjoint(max_states=2), "discrete"):
            y0 = start.clone().requires_grad_()
            ys = qj.odeint(
                lambda t, y, w=weights: -0.7 * y + torch.sin(1.3 * t) + 0.4 * torch.tanh(y) @ w,
                y0,
                t,
                method=method,
                gradient=gradient,
                independent=independent,
                rtol=rtol,
                atol=rtol,
            )
            assert isinstance(ys, Tensor)
            found += gradients(ys[-1], y0)
        assert close(*found, 10 * rtol)


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("method", ["euler", "implicit_euler"])
def test_the_cubic_of_a_method_of_order_one(method: str, backwards: bool) -> None:
    """Through the ends of the step with their slopes, as its name says; the straight line unless it is asked for."""
    sign = -1.0 if backwards else 1.0
    times = sign * tensor([0.0, 0.4, 0.5])

    def f(t: Tensor, y: Tensor) -> Tensor:
        return torch.sin(3.0 * t) * y - 0.4 * y * y

    def middle(**options: object) -> tuple[Tensor, Tensor, Tensor]:
        how = {"method": method, "options": {"step_size": 0.1, **options}}
        sol = qj.solve(f, tensor([1.3]), times, **how)
        return sol.ys[1], sol.ys[2], sol(float(sign * 0.45))

    y0, y1, found = middle(interp="cubic")
    rise = 0.1 * sign / 8.0 * (f(times[1], y0) - f(times[2], y1))
    assert close(found, 0.5 * (y0 + y1) + rise, 1e-10)
    for options in ({}, {"interp": "linear"}):
        y0, y1, found = middle(**options)
        assert close(found, 0.5 * (y0 + y1), 1e-10)


# Found by a second look -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["dopri5", "kvaerno5", "radauIIA5", "trbdf2", "kvaerno3", "alf"])
def test_states_between_adaptive_steps_along_a_path(method: str) -> None:
    """Along X = t, dz = w z dX is exp(w t), between the ends of steps too, and its derivative in w is t exp(w t)."""
    path = cde.LinearInterpolation(cde.linear_interpolation_coeffs(tensor([[[0.0], [1.0]]])))
    w, t = tensor(1.0, grad=True), tensor([0.0, 0.37, 1.0])
    rtol = 1e-6 if method in ("trbdf2", "alf") else 1e-8
    z = cde.cdeint(
        path, lambda t, z: w * z[..., None], torch.ones(1, 1, dtype=D), t, method=method, rtol=rtol, atol=rtol
    )
    assert close(z[0, 1, 0], t[1].exp(), 30 * rtol)
    (found,) = gradients(z[0, 1, 0], w)
    assert close(found, t[1] * t[1].exp(), 100 * rtol)


@pytest.mark.parametrize("own", [False, True])
def test_a_path_with_kinks_beside_one_that_bends(own: bool) -> None:
    """dz = w z dX is exp(w (X - X0)) along any path; the knots of both lie at the same times."""
    torch.manual_seed(0)
    x, w = 3.0 * torch.randn(1, 6, 2, dtype=D), 0.1
    bent = cde.CubicSpline(cde.hermite_cubic_coefficients_with_backward_differences(x))
    kinked = cde.LinearInterpolation(cde.linear_interpolation_coeffs(x))
    both = cde.TupleControl(bent, kinked)

    def f(t: Tensor, z: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
        return tuple(w * part[..., None].expand(1, 2, 2) for part in z)

    start = torch.ones(1, 2, dtype=D)
    t = both.interval.to(D)
    for rtol in (1e-7, (1e-7, torch.full((2,), 1e-7, dtype=D))):
        ends = cde.cdeint(both, f, (start, start), t[None] if own else t, rtol=rtol, atol=1e-7)
        wanted = (w * (x[0, -1] - x[0, 0]).sum()).exp()
        assert all(close(z[0, -1], [float(wanted)] * 2, 1e-5) for z in ends)


def test_states_asked_for_inside_of_transforms() -> None:
    """exp(-1/2) is the derivative of y(1/2) in y(0), for samples with times of their own too."""
    y0, t = torch.ones(2, 1, dtype=D), tensor([[0.0, 1.0], [0.0, 2.0]])

    def state(y: Tensor) -> Tensor:
        return qj.solve(lambda t, y: -y, y, t, **TIGHT)(0.5)

    _, tangent = torch.func.jvp(state, (y0,), (y0,))
    assert close(tangent, [[math.exp(-0.5)]] * 2)
    assert close(torch.func.grad(lambda y: state(y).sum())(y0), [[math.exp(-0.5)]] * 2)


@pytest.mark.parametrize("gradient", ["adjoint", "seminorm", "gq-paper"])
@pytest.mark.parametrize("method", ["gl4", "implicit_euler", "kvaerno5", "implicit_adams"])
def test_tolerances_per_component_and_a_backward_solve_on_the_grid(method: str, gradient: str) -> None:
    """6 exp(-w) has the derivative -6 exp(-w)."""
    w, tolerance = tensor(1.0, grad=True), torch.full((2, 3), 1e-8, dtype=D)
    options = {"step_size": 0.01 if method == "implicit_euler" else 0.05}
    ys = qj.odeint(
        lambda t, y: -w * y,
        torch.ones(2, 3, dtype=D),
        tensor([0.0, 1.0]),
        method=method,
        options=options,
        gradient=gradient,
        atol=tolerance,
        rtol=tolerance,
    )
    assert isinstance(ys, Tensor)
    (found,) = gradients(ys[-1], w)
    assert close(found, -6.0 * math.exp(-1.0), 1e-2 if method == "implicit_euler" else 1e-5)
