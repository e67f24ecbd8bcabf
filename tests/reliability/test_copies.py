"""Copies of every public object: copy, deepcopy, pickle, torch.save and load."""

from __future__ import annotations

import copy
import io
import pickle
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import quadjoint as qj
from quadjoint.cde import interpolate
from quadjoint.errors import NonFiniteStateError, StepSizeUnderflowError, TooManyStepsError
from quadjoint.experiments import image_layers
from reliability.faults import initial

OBJECTS = {
    **{f"gradient {name}": how for name, how in qj.GRADIENTS.items()},
    "Auto": qj.Auto(memory_limit=10**6),
    "Adjoint": qj.Adjoint(rtol=1e-3),
    "GaussLegendre": qj.GaussLegendre(nodes=4, rtol=1e-4),
    "QuadratureAdjoint": qj.QuadratureAdjoint(qj.Heuristic(c=0.2)),
    "DiscreteAdjoint": qj.DiscreteAdjoint(keep="states", max_states=3, mode="joint"),
    "PerStep": qj.PerStep(2),
    "Heuristic": qj.Heuristic(c=0.3, max_nodes=7),
    "InState": qj.InState(seminorm=True),
    "Quadrature": qj.Quadrature(qj.PerStep(2)),
    "Stats": qj.Stats(forward_evaluations=3, gradient_error=0.5),
    "Span": qj.Span(0.0, 1.0, 1.0, 10, 5),
    "Ending": qj.Ending.EVENT,
    "PIDController": qj.PIDController(p=0.3, i=0.4, d=0.1),
}


def _copies(x: Any) -> list[Any]:
    file = io.BytesIO()
    torch.save(x, file)
    file.seek(0)
    return [copy.copy(x), copy.deepcopy(x), pickle.loads(pickle.dumps(x)), torch.load(file, weights_only=False)]


@pytest.mark.parametrize("name", OBJECTS)
def test_settings_survive_copying(name: str) -> None:
    for twin in _copies(OBJECTS[name]):
        assert twin == OBJECTS[name]


def path() -> Any:
    return interpolate(torch.linspace(0, 1, 30, dtype=torch.float64).reshape(2, 5, 3))


MODULES: dict[str, tuple[Any, Any]] = {
    "MLP": (lambda: qj.nn.MLP(3, 5, 3), initial),
    "NeuralODE": (lambda: qj.nn.NeuralODE(qj.nn.TimeMLP(3, width=4), gradient="gq"), initial),
    "Augment": (lambda: qj.nn.Augment(2), initial),
    "Downsampling": (lambda: image_layers.Downsampling(1, 2), lambda: torch.linspace(0, 1, 200).reshape(2, 1, 10, 10)),
    "TimeMLP": (lambda: qj.nn.TimeMLP(3, width=4), None),
    "SecondOrder": (lambda: qj.nn.SecondOrder(qj.nn.TimeMLP(2, width=4, out=1)), None),
    "MatrixMLP": (lambda: qj.nn.MatrixMLP(3, 2, width=4), None),
    "NeuralCDE": (lambda: qj.nn.NeuralCDE(4, 3, width=4), path),
    "ConvDynamics": (lambda: image_layers.ConvDynamics(2, hidden=3), None),
}


@pytest.mark.parametrize("name", MODULES)
def test_modules_survive_copying_and_their_weights_load_safely(name: str) -> None:
    make, inputs = MODULES[name]
    torch.manual_seed(0)
    module, fresh = make().double(), make().double()
    if inputs is None:
        shape = (4, 2, 5, 5) if name == "ConvDynamics" else (4, 2) if name == "SecondOrder" else (4, 3)
        args: tuple[Tensor, ...] = (torch.tensor(0.3, dtype=torch.float64), torch.ones(shape, dtype=torch.float64))
    else:
        given = inputs()
        args = (given.double() if isinstance(given, Tensor) else given,)
    module.eval(), fresh.eval()
    file = io.BytesIO()
    torch.save(module.state_dict(), file)
    file.seek(0)
    fresh.load_state_dict(torch.load(file, weights_only=True))
    expected = module(*args)
    for twin in [*_copies(module), fresh]:
        assert torch.equal(twin(*args), expected)


class Linear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.tensor(0.3))

    def forward(self, t: Tensor, y: Tensor) -> Tensor:
        return self.a * y


def _sde() -> qj.NeuralSDE:
    return qj.NeuralSDE(Linear(), Linear(), noise_type="diagonal", sde_type="stratonovich")


def test_an_sde_survives_copying() -> None:
    sde, t, y = _sde(), torch.tensor(0.2), torch.ones(3, 2)
    for twin in _copies(sde)[1:]:
        assert torch.equal(twin.f(t, y), sde.f(t, y)) and torch.equal(twin.g(t, y), sde.g(t, y))
        with torch.no_grad():
            next(iter(twin.parameters())).add_(1.0)
        assert not torch.equal(next(iter(twin.parameters())), next(iter(sde.parameters())))


def test_a_random_ode_survives_copying() -> None:
    """Before its noise is drawn, and after: the copy of a drawn path holds the same coefficients."""
    random_ode, y0, t = qj.WongZakai(_sde(), 0.0, 1.0, terms=3), torch.ones(3, 2), torch.tensor([0.0, 1.0])
    expected = random_ode.odeint(y0, t, seed=0, method="rk4")
    for twin in _copies(random_ode):
        assert torch.equal(twin.odeint(y0, t, seed=0, method="rk4"), expected)
    for dynamics in _copies(random_ode.sample(y0, seed=0)):
        assert torch.equal(qj.odeint(dynamics, y0, t, method="rk4"), expected)


@pytest.mark.parametrize("name", sorted(qj.TABLEAUS))
def test_tableaus_survive_copying(name: str) -> None:
    tableau = qj.TABLEAUS[name]
    for twin in _copies(tableau):
        for field in fields(tableau):
            assert np.array_equal(getattr(twin, field.name), getattr(tableau, field.name))


@pytest.mark.parametrize("kind", [qj.SolveError, NonFiniteStateError, StepSizeUnderflowError, TooManyStepsError])
def test_errors_reach_another_process_with_their_words(kind: type[Exception]) -> None:
    """A worker's exception is pickled on its way to the main process."""
    twin = pickle.loads(pickle.dumps(kind("the step size fell")))
    assert type(twin) is kind and str(twin) == "the step size fell"


def test_a_solution_without_gradient_survives_copying() -> None:
    with torch.no_grad():
        solution = qj.solve(Linear(), torch.ones(2), torch.tensor([0.0, 1.0]))
    for twin in _copies(solution)[1:]:
        assert torch.equal(twin(torch.tensor(0.5)), solution(torch.tensor(0.5)))


def test_the_status_of_independent_samples_survives_copying() -> None:
    y0, t, options = torch.tensor([[1.0], [0.1]]), torch.tensor([0.0, 2.0]), {"on_failure": "nan"}
    with torch.no_grad():
        solution = qj.solve(lambda t, y: y * y, y0, t, independent=True, options=options)
    assert solution.status is not None and solution.status.failed.tolist() == [True, False]
    for twin in _copies(solution.status):
        assert twin[0] is solution.status[0] and torch.equal(twin.codes, solution.status.codes)
        assert torch.equal(twin.t, solution.status.t)


def test_no_public_class_is_forgotten_here() -> None:
    """Base classes and parts of solves apart, which nobody keeps, and exceptions, which have their own test."""
    seen = {type(x) for x in OBJECTS.values()} | {qj.NeuralSDE, qj.WongZakai, qj.ButcherTableau}
    seen |= {qj.Solution, qj.Status}
    apart = {qj.Gradient, qj.NodePolicy, qj.SolveError, qj.QuadjointWarning, qj.Explanation}
    apart |= {qj.Stepper, qj.Step, qj.HermiteStep, qj.Controller}
    public = {x for x in (getattr(qj, name) for name in qj.__all__) if isinstance(x, type)}
    assert public - seen - apart == set()
    assert {name for name in qj.nn.__all__ if isinstance(getattr(qj.nn, name), type)} <= set(MODULES)
