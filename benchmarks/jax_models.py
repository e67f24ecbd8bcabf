"""The dynamics of the cases in jax, with the weights of the torch modules, for diffrax.

``dynamics(case)`` returns ``f(t, y, weights)`` and the weights in the order of ``case.f.parameters()``, so that the
gradients of both libraries can be compared number by number.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import torch
from torch import Tensor

from benchmarks.problems import Case

Field = Callable[[Any, Any, Any], Any]


def to_jax(x: Tensor) -> Any:
    """Floating point in jax's default precision, whole numbers as they are."""
    array = x.detach().cpu().numpy()
    return jnp.asarray(array, dtype=jnp.result_type(float) if x.is_floating_point() else None)


def dynamics(case: Case) -> tuple[Field, list[Any]]:
    weights = [to_jax(p) for p in case.f.parameters()]
    f: Any = case.f
    if case.kind == "mlp":
        return (_time_mlp if f.time else _mlp), weights
    if case.kind == "second-order":
        return _second_order, weights
    if case.kind == "conv":
        return _conv, weights
    if case.kind == "random-ode":
        return _random_ode(f.path), weights
    raise NotImplementedError(f"no jax form of {case.kind}")


def _layers(x: Any, weights: list[Any]) -> Any:
    """Linear layers with softplus between them; weights are w, b, w, b, ..."""
    pairs = list(zip(weights[::2], weights[1::2], strict=True))
    for w, b in pairs[:-1]:
        x = jax.nn.softplus(x @ w.T + b)
    w, b = pairs[-1]
    return x @ w.T + b


def _with_time(t: Any, y: Any) -> Any:
    return jnp.concatenate([y, jnp.full_like(y[..., :1], t)], axis=-1)


def _mlp(t: Any, y: Any, weights: list[Any]) -> Any:
    return _layers(y, weights)


def _time_mlp(t: Any, y: Any, weights: list[Any]) -> Any:
    return _layers(_with_time(t, y), weights)


def _second_order(t: Any, y: Any, weights: list[Any]) -> Any:
    return jnp.concatenate([y[..., y.shape[-1] // 2 :], _layers(y, weights)], axis=-1)


def _conv(t: Any, y: Any, weights: list[Any]) -> Any:
    for i in range(0, 6, 2):
        y = jax.lax.conv_general_dilated(y, weights[i], (1, 1), "SAME", dimension_numbers=("NCHW", "OIHW", "NCHW"))
        y = y + weights[i + 1][:, None, None]
        y = y if i == 4 else jax.nn.softplus(y)
    return y


def _random_ode(path: Any) -> Field:
    """Drift and diffusion with one drawn path: the first half of the weights is the drift's."""
    xi = to_jax(torch.cat(list(path.coefficients.draw())))
    frequencies, scale, start = to_jax(path.frequencies), path.scale, path.t0

    def f(t: Any, y: Any, weights: list[Any]) -> Any:
        half = len(weights) // 2
        x = _with_time(t, y)
        noise = jnp.tensordot(scale * jnp.cos(frequencies * (t - start)), xi, axes=1)
        return _layers(x, weights[:half]) + _layers(x, weights[half:]) * noise

    return f
