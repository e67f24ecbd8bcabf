"""compile=True: the same results from one graph a step, kept and not recompiled, with a fallback in words."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import quadjoint as qj
from quadjoint import compiled
from quadjoint.errors import forget_warnings

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
    monkeypatch.setattr(compiled, "COMPILE", {"backend": "eager", "dynamic": False})


def gradients(net: Net, gradient: str, compile: bool, **kwargs: object) -> tuple[Tensor, Tensor]:
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
    [("bosh3", "direct"), ("bosh3", "discrete"), ("bosh3", "gq"), ("adaptive_heun", "discrete"), ("rk4", "discrete")],
)
def test_compiled_equals_eager(net: Net, quick_backend: None, method: str, gradient: str) -> None:
    options = {"step_size": 0.25} if method == "rk4" else None
    settings = {"method": method, "options": options}
    for ours, eager in zip(
        gradients(net, gradient, True, **settings), gradients(net, gradient, False, **settings), strict=True
    ):
        torch.testing.assert_close(ours, eager, rtol=1e-10, atol=1e-12)


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
