"""torch.compile around a model with a solve inside: the solve steps out of the graph by itself (20.4)."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import quadjoint as qj
from trust.helpers import GRADIENTS, Field, assert_close, cases

# What torch says of graph breaks, and its tracer's look at .grad of intermediate tensors.
pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning:torch"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:torch"),
]


class Model(nn.Module):
    """A solve between two layers, with weights of its own."""

    def __init__(self, gradient: Any) -> None:
        super().__init__()
        self.field, self.gradient = Field(dtype=torch.float32), gradient
        self.last = nn.Linear(3, 1)
        nn.init.constant_(self.last.weight, 0.5)
        nn.init.zeros_(self.last.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(qj.odeint(self.field, torch.sin(x), torch.tensor([0.0, 1.0]), gradient=self.gradient)[-1])


def trained(gradient: Any, backend: str | None) -> list[Tensor]:
    """The weights after three steps of training."""
    torch._dynamo.reset()
    model = Model(gradient)
    run = model if backend is None else torch.compile(model, backend=backend)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.linspace(-1.0, 1.0, 24).reshape(8, 3)
    for _ in range(3):
        optimiser.zero_grad()
        run(x).square().mean().backward()
        optimiser.step()
    return [p.detach() for p in model.parameters()]


@pytest.mark.parametrize(
    ("backend", "gradient"),
    cases(["eager"], ["auto", "discrete"]),
)
def test_a_compiled_model_trains_as_the_model_itself(backend: str, gradient: Any) -> None:
    assert_close(trained(gradient, backend), trained(gradient, None), within=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("gradient", cases(GRADIENTS))
def test_a_compiled_model_trains_with_every_gradient(gradient: Any) -> None:
    assert_close(trained(gradient, "aot_eager"), trained(gradient, None), within=1e-5)
