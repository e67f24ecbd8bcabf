"""Statements that the paper makes of several experiments, and what their words are taken to mean."""

from __future__ import annotations

from quadjoint.experiments.claims.checks_accuracy import less_error, same_gradients
from quadjoint.experiments.claims.checks_cost import evaluations, fewer_evaluations, leaner
from quadjoint.experiments.claims.checks_curves import matching_curves, sooner
from quadjoint.experiments.claims.checks_time import LARGE, faster, growth, similar_times
from quadjoint.experiments.verdicts import Claim, every

COMPARED = ("direct", "adjoint", "seminorm", "gq-paper")  # the methods that the paper compares
ADJOINTS = ("gq-paper", "adjoint", "seminorm")
MOST_SEEDS = ("gq-paper", "direct")  # in the evening the former is trained once; both solve the same ODE

FASTER = "at least a twentieth less time for a step, at the largest width, of 500 or more"
DIRECT = "at least a twentieth less time for a step, at the largest width; the paper’s times are of a GPU"
QUICKER = "at least a twentieth less time for a step, at the largest width"
GROWTH = "the ratio of the two times grows by at least a twentieth from the smallest to the largest width"
SMALL = "times within a third of each other at the smallest width, of 20 or less"
CURVES = "on average over the epochs, less than a tenth of the first value from the curve of gq-paper"
SOONER = (
    "at least a twentieth less time to a tenth of the first loss, or to the lowest that both reach, at the largest "
    "width that was trained"
)
GRADIENTS = "differences from direct’s of less than a hundredth, at every width, on the weights that were timed"
ACCURACY = "mean accuracies less than three percentage points from that of gq-paper"
ERROR = "mean errors less than a tenth, or 0.01, from that of gq-paper"
EXPECTED = "to a quarter of it, on average over all trained runs; the paper expects it from other papers"


def large_models(small: tuple[str, ...] = ADJOINTS) -> list[Claim]:
    """What the paper says of every task with a small state and a large model."""
    names = {"adjoint": "the adjoint", "seminorm": "the seminorm"}
    few = "all methods" if "direct" in small else "the adjoint methods"
    return [
        *(
            Claim(f"GQ is faster than {name} for large models.", faster("gq-paper", other, least=LARGE), FASTER)
            for other, name in names.items()
        ),
        *(
            Claim(f"GQ’s time grows less with the width than {name}’s.", growth("gq-paper", other), GROWTH)
            for other, name in names.items()
        ),
        Claim("Direct backpropagation is the fastest.", every(*(faster("direct", m) for m in ADJOINTS)), DIRECT),
        Claim(
            "Direct backpropagation needs more memory than the adjoint.",
            leaner("adjoint", "direct"),
            "peak of one gradient, at every width",
        ),
        Claim(f"With few parameters, {few} take similar times.", similar_times(small, 4 / 3), SMALL),
    ]


def equal_gradients(statement: str) -> Claim:
    """The paper infers it from equal errors or curves of time series, and not of nested spheres."""
    return Claim(statement, same_gradients(ADJOINTS, 0.01), GRADIENTS)


def loss_curves(loss: str) -> list[Claim]:
    reduces = [
        Claim(
            f"GQ reduces the loss faster in time than the {other}.",
            sooner("gq-paper", other, loss),
            SOONER,
            trained=True,
        )
        for other in ("adjoint", "seminorm")
    ]
    match = matching_curves(loss, COMPARED, 0.1)
    return [Claim("The loss curves of all methods match.", match, CURVES, trained=True), *reduces]


def numbers_of_evaluations() -> list[Claim]:
    """The paper's appendix E.1, for solves without intermediate observations."""
    nodes = "quadrature_nodes"
    return [
        Claim(
            "The adjoint needs half as many evaluations backwards as forwards.",
            evaluations("adjoint", 0.375, 0.625),
            EXPECTED,
        ),
        Claim("The seminorm needs 0.2 to 0.3 times as many.", evaluations("seminorm", 0.15, 0.375), EXPECTED),
        Claim(
            "The seminorm needs 40 to 62 % fewer than the adjoint.",
            fewer_evaluations("seminorm", "adjoint", 0.3, 0.775),
            EXPECTED,
        ),
        Claim("GQ’s backward solve needs 0.2 to 0.3 times as many.", evaluations("gq-paper", 0.15, 0.375), EXPECTED),
        Claim(
            "GQ’s quadrature needs 0.1 times as many.",
            evaluations("gq-paper", 0.075, 0.15, of=nodes),
            "0.075 to 0.15, as the number of nodes is rounded up; without runs that reach 64 nodes",
        ),
        Claim(
            "GQ evaluates the parameters’ integrand at most a fifth as often as the adjoint.",
            fewer_evaluations("gq-paper", "adjoint", 0.8, 1.0, of=nodes),
            "on average over all trained runs; the paper says a fifth, and that it is likely an overestimate",
        ),
        Claim(
            "GQ evaluates the parameters’ integrand less often than the seminorm.",
            fewer_evaluations("gq-paper", "seminorm", 0.0, 1.0, of=nodes),
            "on average over all trained runs",
        ),
    ]


def ours() -> list[Claim]:
    """What this library's methods are there for."""
    return [
        *quicker(),
        Claim(
            "gq’s gradients are more accurate than gq-paper’s.",
            less_error("gq", "gq-paper"),
            "the error of one gradient with the weights enlarged as in the figure, seed by seed, at every width",
            ours=True,
        ),
    ]


def quicker() -> list[Claim]:
    """Times of this library's methods."""
    return [
        Claim("gq is faster than gq-paper.", faster("gq", "gq-paper"), QUICKER, ours=True),
        Claim("discrete is faster than gq-paper.", faster("discrete", "gq-paper"), QUICKER, ours=True),
        Claim("auto is faster than gq-paper.", faster("auto", "gq-paper"), QUICKER, ours=True),
    ]
