"""compile=True: the same results from one graph a step, kept and not recompiled, with a fallback in words."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import quadjoint as qj
from quadjoint.errors import forget_warnings
from quadjoint.solver.methods import compiled

# torch's tracer looks at .grad of intermediate tensors and calls deprecated parts of itself.
pytestmark = [
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:torch"),
]


class Net(nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(2, width), nn.Tanh(), nn.Linear(width, 2))

    def forward(self, t: Tensor, y: Tensor) -> Tensor:
        return self.layers(y) * torch.cos(t)


@pytest.fixture
def net() -> Net:
    torch.manual_seed(0)
    return Net().double()


@pytest.fixture
def quick_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trace as in earnest, without generating machine code."""
    monkeypatch.setattr(compiled, "COMPILE", {"backend": "eager"})


def gradients(net: Net, gradient: str | qj.Gradient, compile: bool, **kwargs: object) -> tuple[Tensor, Tensor]:
    net.zero_grad()
    y0 = torch.linspace(-1, 1, 8, dtype=torch.float64).reshape(4, 2)
    t = kwargs.pop("t", torch.linspace(0, 2, 7, dtype=torch.float64))
    settings = {"rtol": 1e-6, "atol": 1e-6, **kwargs}
    ys = qj.odeint(net, y0, t, gradient=gradient, compile=compile, **settings)  # type: ignore[arg-type]
    ys.square().sum().backward()
    return ys.detach(), torch.cat([p.grad.reshape(-1) for p in net.parameters() if p.grad is not None])


def graphs() -> int:
    return int(torch._dynamo.utils.counters["stats"]["unique_graphs"])


@pytest.mark.parametrize(
    ("method", "gradient"),
    [
        ("bosh3", "direct"),
        ("bosh3", "discrete"),
        ("bosh3", qj.DiscreteAdjoint(max_states=2)),
        ("bosh3", qj.DiscreteAdjoint(memory_limit=200)),
        ("bosh3", "gq"),
        ("adaptive_heun", "discrete"),
        ("rk4", "discrete"),
    ],
)
def test_compiled_equals_eager(net: Net, quick_backend: None, method: str, gradient: str | qj.Gradient) -> None:
    """Also where states are kept, or checkpoints."""
    options = {"step_size": 0.25} if method == "rk4" else None
    settings = {"method": method, "options": options}
    for ours, eager in zip(
        gradients(net, gradient, True, **settings), gradients(net, gradient, False, **settings), strict=True
    ):
        torch.testing.assert_close(ours, eager, rtol=1e-10, atol=1e-12)


def test_the_transpose_has_the_stages_of_observations(net: Net, quick_backend: None) -> None:
    """dopri8 evaluates stages for them, outside of the graph; the steps of both gradients are the same."""
    (_, ours), (_, wanted) = (gradients(net, how, True, method="dopri8") for how in ("discrete", "direct"))
    torch.testing.assert_close(ours, wanted, rtol=1e-10, atol=1e-12)


def test_compiled_equals_eager_at_a_discontinuity(net: Net, quick_backend: None) -> None:
    """The step behind it is not compiled."""
    settings = {"method": "bosh3", "options": {"jump_t": torch.tensor([0.7], dtype=torch.float64)}}
    for ours, eager in zip(
        gradients(net, "discrete", True, **settings), gradients(net, "discrete", False, **settings), strict=True
    ):
        torch.testing.assert_close(ours, eager, rtol=1e-10, atol=1e-12)


def test_the_transpose_of_a_compiled_step_evaluates_its_stages_once(net: Net, quick_backend: None) -> None:
    t = torch.linspace(0, 2, 7, dtype=torch.float64)
    settings = {"method": "bosh3", "gradient": "discrete", "compile": True}
    sol = qj.solve(net, torch.ones(4, 2, dtype=torch.float64), t, **settings)  # type: ignore[arg-type]
    sol.ys.square().sum().backward()
    assert sol.stats.backward_evaluations == 4 * sol.stats.accepted_steps


def test_no_recompilation_for_other_times_tolerances_and_observations(net: Net, quick_backend: None) -> None:
    gradients(net, "discrete", True, method="bosh3")
    before = graphs()
    assert before > 0
    gradients(net, "discrete", True, method="bosh3", t=torch.linspace(0.5, 3, 2, dtype=torch.float64))
    gradients(net, "discrete", True, method="bosh3", t=torch.linspace(0.5, 3, 40, dtype=torch.float64), rtol=1e-3)
    assert graphs() == before


def test_many_functions_each_keep_their_graph(quick_backend: None) -> None:
    """More functions than torch.compile's limit of recompilations per code object."""
    nets = [Net(3 + i).double() for i in range(10)]
    for net in nets:
        gradients(net, "direct", True, method="bosh3")
    before = graphs()
    for net in nets:
        gradients(net, "direct", True, method="bosh3")
    assert graphs() == before


def test_one_graph_serves_all_paths_of_a_random_ode(net: Net, quick_backend: None) -> None:
    sde = qj.NeuralSDE(net, lambda t, y: 0.1 * torch.cos(y), noise_type="diagonal")
    random_ode = qj.WongZakai(sde, 0.0, 2.0, terms=3)
    y0, t = torch.ones(4, 2, dtype=torch.float64), torch.tensor([0.0, 2.0], dtype=torch.float64)
    settings = {"gradient": "direct", "method": "bosh3"}
    random_ode.odeint(y0, t, seed=0, compile=True, **settings)
    before = graphs()
    ours = random_ode.odeint(y0, t, seed=1, compile=True, **settings)
    assert graphs() == before
    torch.testing.assert_close(ours, random_ode.odeint(y0, t, seed=1, **settings), rtol=1e-10, atol=1e-12)


def test_one_graph_serves_all_times_of_the_samples(net: Net, quick_backend: None) -> None:
    y0 = torch.ones(3, 2, dtype=torch.float64)
    t = torch.tensor([[0.0, 1.0], [0.5, 2.0], [1.0, 1.5]], dtype=torch.float64)
    qj.odeint(net, y0, t, gradient="direct", method="bosh3", compile=True)
    before = graphs()
    ours = qj.odeint(net, y0, 2 * t, gradient="direct", method="bosh3", compile=True)
    assert graphs() == before
    torch.testing.assert_close(ours, qj.odeint(net, y0, 2 * t, gradient="direct", method="bosh3"))


def test_machine_code_equals_eager(net: Net) -> None:
    for ours, eager in zip(
        gradients(net, "discrete", True, method="bosh3"), gradients(net, "direct", False, method="bosh3"), strict=True
    ):
        torch.testing.assert_close(ours, eager, rtol=1e-9, atol=1e-12)


def test_a_function_that_cannot_be_compiled_falls_back_with_one_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(graph: object, inputs: object) -> object:
        raise RuntimeError("no such operation")

    forget_warnings()
    monkeypatch.setattr(compiled, "COMPILE", {"backend": broken})
    net = Net().double()
    with pytest.warns(qj.QuadjointWarning, match="could not be compiled"):
        ours = gradients(net, "direct", True)
    for a, b in zip(ours, gradients(net, "direct", False), strict=True):
        assert torch.equal(a, b)


def test_methods_without_runge_kutta_steps_say_so() -> None:
    forget_warnings()
    net = Net().double()
    with pytest.warns(qj.QuadjointWarning, match="compile=True has no effect with method 'implicit_adams'"):
        gradients(net, "direct", True, method="implicit_adams", options={"step_size": 0.1})


class Switch(Net):
    """Turns around at t = 1."""

    def forward(self, t: Tensor, y: Tensor) -> Tensor:
        return self.layers(y) * torch.where(t < 1.0, 1.0, -2.0)


@pytest.mark.parametrize("gradient", ["direct", "discrete", "gq"])
def test_discontinuities_are_met_from_the_right_side(quick_backend: None, gradient: str) -> None:
    """Steps beside a discontinuity are not compiled, the others are; the backward pass takes the same ones again."""
    net = Switch().double()
    settings = {"method": "bosh3", "options": {"jump_t": torch.tensor([1.0])}}
    for ours, eager in zip(
        gradients(net, gradient, True, **settings), gradients(net, gradient, False, **settings), strict=True
    ):
        torch.testing.assert_close(ours, eager, rtol=1e-9, atol=1e-11)


class Model(nn.Module):
    def __init__(self, gradient: str, compile: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.f, self.gradient, self.compile_steps = Net().double(), gradient, compile

    def forward(self, y0: Tensor) -> Tensor:
        t = torch.linspace(0, 1, 4, dtype=torch.float64)
        return qj.odeint(self.f, y0, t, method="bosh3", gradient=self.gradient, compile=self.compile_steps)


@pytest.mark.parametrize("gradient", ["direct", "discrete", "gq"])
def test_functional_call_differentiates_in_the_weights_it_was_given(quick_backend: None, gradient: str) -> None:
    """When the backward pass runs, the module, and the graph compiled for it, have their own weights again."""
    y0, scale = torch.ones(3, 2, dtype=torch.float64), torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
    found = []
    for compile in (True, False):
        model = Model(gradient, compile)
        model(y0)  # compiled with other weights
        weights = {name: scale * p.detach() for name, p in model.named_parameters()}
        ys = torch.func.functional_call(model, weights, (y0,))
        found.append((ys.detach(), *torch.autograd.grad(ys.square().sum(), scale)))
        assert all(p.grad is None for p in model.parameters())
    for ours, eager in zip(*found, strict=True):
        torch.testing.assert_close(ours, eager, rtol=1e-10, atol=1e-12)


def hessian_product(net: Net, ys: Tensor, y0: Tensor) -> list[Tensor]:
    inputs = [y0, *net.parameters()]
    first = torch.autograd.grad(ys.square().sum(), inputs, create_graph=True)
    total = sum(g.square().sum() for g in first)
    return list(torch.autograd.grad(total, inputs, allow_unused=True, retain_graph=True))


@pytest.mark.parametrize("gradient", ["direct", "discrete", "gq"])
def test_second_derivatives(net: Net, monkeypatch: pytest.MonkeyPatch, gradient: str) -> None:
    """Compiled backward graphs cannot be differentiated; the solve is then repeated without them."""
    monkeypatch.setattr(compiled, "COMPILE", {"backend": "aot_eager"})
    weight = net.layers[0].weight
    found = []
    for compile in (True, False):
        x = torch.ones(4, 2, dtype=torch.float64, requires_grad=True)
        ys = qj.odeint(
            net,
            x * weight[0],
            torch.linspace(0, 1, 3, dtype=torch.float64),
            method="bosh3",
            gradient=gradient,
            compile=compile,
        )
        found.append(hessian_product(net, ys, x))
    for ours, eager in zip(*found, strict=True):
        torch.testing.assert_close(ours, eager, rtol=1e-9, atol=1e-11)


def test_derivatives_of_a_solution(net: Net, quick_backend: None) -> None:
    y0 = torch.ones(4, 2, dtype=torch.float64, requires_grad=True)
    t = torch.linspace(0, 1, 3, dtype=torch.float64)
    sol = qj.solve(net, y0, t, method="bosh3", gradient="direct", compile=True)
    eager = qj.solve(net, y0, t, method="bosh3", gradient="direct")
    for ours, theirs in zip(hessian_product(net, sol.ys, y0), hessian_product(net, eager.ys, y0), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)
    for a, b in ((sol.ys, eager.ys), (sol(0.3), eager(0.3))):
        (ours,), (theirs,) = (torch.autograd.grad(x.square().sum(), y0, retain_graph=True) for x in (a, b))
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


def test_tensors_that_no_module_registers_are_differentiated_in(quick_backend: None) -> None:
    hidden = [torch.tensor(0.7, dtype=torch.float64, requires_grad=True)]
    net = Net().double()
    net.register_forward_hook(lambda module, inputs, out: out * hidden[0])
    y0, t = torch.ones(4, 2, dtype=torch.float64), torch.linspace(0, 1, 3, dtype=torch.float64)
    ours, eager = (
        torch.autograd.grad(
            qj.odeint(net, y0, t, method="bosh3", gradient="direct", compile=compile).square().sum(), hidden[0]
        )[0]
        for compile in (True, False)
    )
    torch.testing.assert_close(ours, eager, rtol=1e-10, atol=1e-12)


def test_machine_code_runs_backwards_twice_and_is_differentiated_twice(net: Net) -> None:
    found = []
    for compile in (True, False):
        y0 = torch.ones(4, 2, dtype=torch.float64, requires_grad=True)
        ys = qj.odeint(
            net, y0, torch.tensor([0.0, 0.5], dtype=torch.float64), method="bosh3", gradient="direct", compile=compile
        )
        (first,) = torch.autograd.grad(ys.square().sum(), y0, retain_graph=True)
        (again,) = torch.autograd.grad(ys.square().sum(), y0, retain_graph=True)
        assert torch.equal(first, again)
        found.append((first, *hessian_product(net, ys, y0)))
    for ours, eager in zip(*found, strict=True):
        torch.testing.assert_close(ours, eager, rtol=1e-9, atol=1e-11)


class CompiledByTheUser(nn.Module):
    """A field that its user has compiled; its backward pass may reuse the memory of the forward pass."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net
        self.fast = torch.compile(net)

    def forward(self, t: Tensor, y: Tensor) -> Tensor:
        return self.fast(y) * torch.cos(t)


def test_a_function_that_was_compiled_before_has_every_gradient() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(2, 300), nn.Tanh(), nn.Linear(300, 2)).double()
    f, y0 = CompiledByTheUser(net), torch.linspace(-1, 1, 8, dtype=torch.float64).reshape(4, 2)
    t = torch.tensor([0.0, 0.5, 1.0], dtype=torch.float64)

    def gradient(how: str | qj.Gradient) -> Tensor:
        ys = qj.odeint(f, y0, t, gradient=how, rtol=1e-7, atol=1e-9)
        assert isinstance(ys, Tensor)
        return torch.cat([g.reshape(-1) for g in torch.autograd.grad(ys.square().sum(), list(net.parameters()))])

    wanted = gradient("direct")
    for mode in ("joint", "stacked"):
        for activations in (0, 2**30):
            found = gradient(qj.DiscreteAdjoint(mode=mode, activations=activations))
            torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-11)
    for name in ("auto", "gq", "adjoint"):
        torch.testing.assert_close(gradient(name), wanted, rtol=1e-5, atol=1e-6)
