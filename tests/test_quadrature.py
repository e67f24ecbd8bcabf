"""Quadrature rules and node policies, on polynomials and on integrals that are known."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import quadjoint as qj
from quadjoint.quadrature import Rule, gauss_legendre, on_interval


def moment(degree: int) -> float:
    """Integral of x**degree over [-1, 1]."""
    return 2.0 / (degree + 1) if degree % 2 == 0 else 0.0


def apply(rule: Rule, degree: int) -> float:
    nodes, weights = rule
    return float(weights @ nodes**degree)


def span(start: float = 1.0, end: float = 0.0, total: float = 1.0, evaluations: int = 0, order: int = 5) -> qj.Span:
    return qj.Span(start, end, total, evaluations, order)


@pytest.mark.parametrize("n", [1, 2, 3, 5, 8, 16, 64])
def test_gauss_legendre_is_exact_to_degree_2n_minus_1_and_not_beyond(n: int) -> None:
    rule = gauss_legendre(n)
    for degree in range(2 * n):
        assert apply(rule, degree) == pytest.approx(moment(degree), abs=4e-14)
    if n <= 16:  # the error in degree 2n falls like 4**-2n and is not visible beyond
        exact_error = 2 ** (2 * n + 1) * math.factorial(n) ** 4 / ((2 * n + 1) * math.factorial(2 * n) ** 2)
        assert moment(2 * n) - apply(rule, 2 * n) == pytest.approx(exact_error, rel=1e-2, abs=1e-14)


@given(st.floats(-50, 50), st.floats(0.01, 20), st.integers(1, 12), st.booleans())
def test_rules_move_to_any_interval_in_either_direction(start: float, length: float, n: int, turned: bool) -> None:
    end = start + length
    pairs = on_interval(gauss_legendre(n), *((end, start) if turned else (start, end)))
    assert all(start <= t <= end and w > 0 for t, w in pairs)
    assert sum(w for _, w in pairs) == pytest.approx(length, rel=1e-12)
    assert sum(w * t for t, w in pairs) == pytest.approx(0.5 * (end**2 - start**2), rel=1e-9, abs=1e-9)


def test_error_of_gauss_legendre_falls_geometrically_for_an_analytic_function() -> None:
    rules = (on_interval(gauss_legendre(n), -1.0, 1.0) for n in (1, 2, 3, 4, 5))
    errors = [abs(sum(w * math.exp(t) for t, w in rule) - 2 * math.sinh(1.0)) for rule in rules]
    assert all(later < earlier / 40 for earlier, later in itertools.pairwise(errors))


@given(st.integers(1, 5000), st.floats(0.001, 1.0), st.floats(0.01, 1.0), st.integers(1, 100))
def test_heuristic_counts_as_in_the_paper(evaluations: int, share: float, c: float, most: int) -> None:
    policy = qj.Heuristic(c, most)
    nodes = policy.nodes(span(end=1.0 - share, evaluations=evaluations))
    wanted = c * evaluations * share
    assert 1 <= len(nodes) <= most
    assert len(nodes) == most or len(nodes) >= wanted - 1e-6
    assert len(nodes) == 1 or len(nodes) <= wanted + 1 + 1e-6


def test_heuristic_has_a_node_also_where_nothing_was_evaluated() -> None:
    assert len(qj.Heuristic().nodes(span(evaluations=0))) == 1
    assert len(qj.Heuristic().nodes(span(evaluations=10_000))) == 64


@pytest.mark.parametrize(("order", "count"), [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3), (8, 5)])
def test_nodes_per_step_are_exact_to_the_order_of_the_solver(order: int, count: int) -> None:
    nodes = qj.PerStep().nodes(span(start=2.0, end=0.5, order=order))
    assert len(nodes) == count
    for degree in range(order + 1):
        exact = (2.0 ** (degree + 1) - 0.5 ** (degree + 1)) / (degree + 1)
        assert sum(w * t**degree for t, w in nodes) == pytest.approx(exact, rel=1e-13)


def test_settings_that_make_no_sense_are_refused_in_words() -> None:
    with pytest.raises(ValueError, match="at least one node"):
        gauss_legendre(0)
    with pytest.raises(ValueError, match="q >= 1"):
        qj.PerStep(0)
    with pytest.raises(ValueError, match="c > 0"):
        qj.Heuristic(c=-0.1)
    with pytest.raises(ValueError, match="max_nodes >= 1"):
        qj.Heuristic(max_nodes=0)


@pytest.mark.parametrize("rule", [gauss_legendre(1), gauss_legendre(7), gauss_legendre(64)])
def test_weights_are_positive_nodes_symmetric_and_inside(rule: Rule) -> None:
    nodes, weights = rule
    assert (weights > 0).all()
    assert weights.sum() == pytest.approx(2.0, abs=1e-13)
    assert np.abs(nodes).max() < 1.0
    assert np.allclose(np.sort(nodes), np.sort(-nodes), atol=1e-14)


def test_cached_rules_cannot_be_changed_by_their_users() -> None:
    for array in gauss_legendre(4):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0.0
