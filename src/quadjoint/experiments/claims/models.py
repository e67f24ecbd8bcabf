"""What the paper says of models with a small state: nested spheres, sine curves, crossing trajectories."""

from __future__ import annotations

from quadjoint.experiments.claims.checks_ablation import (
    STEP,
    Series,
    irregular_cost,
    like_regular,
    pays_little,
    reaches,
    rises,
    stays,
)
from quadjoint.experiments.claims.checks_cost import MOST_NODES
from quadjoint.experiments.claims.checks_time import (
    LARGE,
    faster_on_the_whole,
    grows_more,
    linear_growth,
)
from quadjoint.experiments.claims.checks_training import Margin, low, same
from quadjoint.experiments.claims.common import (
    ACCURACY,
    COMPARED,
    ERROR,
    MOST_SEEDS,
    equal_gradients,
    large_models,
    loss_curves,
    numbers_of_evaluations,
    ours,
)
from quadjoint.experiments.verdicts import Check, Claim, every, of_large_models, with_seeds

_CAPPED = (1e2, 1e5)  # values of C with which the number of nodes is as large as it may be
_SOLVED = 2500  # the width up to which the paper’s crossing trajectories are learnt


def _ablation_of_c() -> list[Claim]:
    paths = STEP, ("final", "test_accuracy"), ("gradient_error",), ("per_gradient", "quadrature_nodes")
    time, accuracy, error, nodes = (Series("C", "c", path, "gq-paper") for path in paths)
    point = "within one percentage point"
    costs = rises(accuracy, (1e-3, 1e-1), ratio=False, by_least=1.0)
    return [
        Claim(
            "The smallest C takes the least time.",
            every(rises(time, (1e-3, 1e5)), rises(time, (1e-3, 1e-1), by_least=0.0)),
            "less than C = 0.1, and a twentieth less than C = 100,000",
        ),
        Claim(
            "The smallest C costs accuracy.",
            of_large_models(costs, "C", LARGE),
            "at least one percentage point less than with C = 0.1; the paper at width 1500",
            trained=True,
        ),
        Claim(
            "With the smallest C the gradients are inaccurate.",
            rises(error, (1e-1, 1e-3), by_least=1.0),
            "their error, at three times the initial weights, is at least twice that with C = 0.1",
        ),
        Claim("C = 100 takes more time than C = 0.1.", rises(time, (1e-1, 1e2)), "at least a twentieth"),
        Claim(
            "C = 0.1 has the accuracy of C = 100.",
            of_large_models(stays(accuracy, (1e-1, 1e2), margin=1.0, ratio=False), "C", LARGE),
            point,
            trained=True,
        ),
        Claim(
            "C = 100 and C = 100,000 both reach 64 nodes.",
            reaches(nodes, _CAPPED, level=MOST_NODES),
        ),
        Claim(
            "C = 100 takes the time of C = 100,000.",
            stays(time, _CAPPED, margin=0.1, ratio=True),
            "within a tenth",
        ),
        Claim(
            "C = 100 has the accuracy of C = 100,000.",
            of_large_models(stays(accuracy, _CAPPED, margin=1.0, ratio=False), "C", LARGE),
            point,
            trained=True,
        ),
    ]


def _by_spacing(method: str) -> Series:
    return Series("regularity", "spacing", ("final", "test_mse"), method)


def _regularity() -> list[Claim]:
    apart = "means apart by less than the sum of the deviations over seeds"
    study, ends = "regularity", ("regular", "merged")

    def compared(**options: bool) -> Check:
        return with_seeds(study, MOST_SEEDS, lambda method: like_regular(method, 250, **options))

    return [
        Claim(
            "Irregular times cost much more time.",
            irregular_cost(*ends, "gq-paper", 1.5),
            "at least half as much again",
        ),
        Claim("With irregular times the error is not significantly different.", compared(), apart, trained=True),
        Claim("The error is slightly lower with irregular times.", compared(lower=True), "lower", trained=True),
        *(
            Claim(
                f"With {times} times, the decrease in error is negligible compared to the increase in time.",
                with_seeds(study, MOST_SEEDS, lambda m: pays_little(_by_spacing(m), ends, falls=True)),
                "the error falls, and by a smaller factor than the time rises",
                trained=True,
                about={"times": times},
            )
            for times in (10, 50)
        ),
    ]


NESTED_SPHERES = [
    *large_models(COMPARED),
    *(
        Claim(
            f"The {slow}’s time increases more with the width than direct’s.",
            grows_more(slow, "direct"),
            "by more seconds, from the smallest to the largest width",
        )
        for slow in ("adjoint", "seminorm")
    ),
    *numbers_of_evaluations(),
    Claim(
        "All methods reach the same accuracy.",
        same("test_accuracy", COMPARED, Margin(3.0, deviation=True)),
        f"{ACCURACY}, or less than a standard deviation over seeds",
        trained=True,
    ),
    *loss_curves("test_loss"),
    *_ablation_of_c(),
    *ours(),
]
SINES = [
    *large_models(),
    equal_gradients("The methods produce the same gradients."),
    Claim("All methods reach the same error.", same("test_mse", COMPARED, Margin(0.01, 0.1)), ERROR, trained=True),
    *loss_curves("test_mse"),
    *_regularity(),
    *ours(),
    *(
        Claim(
            f"{method}: a row of times for each sample costs less than merging irregular times.",
            irregular_cost("per-sample", "merged", method, 1.05),
            "at least a twentieth less time",
            ours=True,
        )
        for method in ("gq-paper", "discrete")
    ),
]
CROSSING = [
    *large_models(),
    equal_gradients("GQ’s gradients are (approximately) the same as the other methods’."),
    Claim(
        "The seminorm is slightly faster than the adjoint on the whole.",
        faster_on_the_whole("seminorm", "adjoint"),
        "less time for a step, on average over the widths",
    ),
    Claim(
        "The adjoint’s and the seminorm’s time grows linearly with the number of parameters.",
        linear_growth(("adjoint", "seminorm"), 0.75, 1.25),
        "with a power between 0.75 and 1.25, from width 500",
    ),
    *numbers_of_evaluations(),
    Claim(
        "All methods reach the same error.",
        same("test_mse", COMPARED, Margin(0.01, 0.1), most=_SOLVED),
        f"{ERROR}; up to width {_SOLVED}, as the paper excepts the largest",
        trained=True,
    ),
    Claim(
        "The errors are low.",
        low("test_mse", COMPARED, 0.01, most=_SOLVED),
        f"means below 0.01, where the identity has 4; up to width {_SOLVED}, as the paper excepts the largest",
        trained=True,
    ),
    *loss_curves("test_mse"),
    *ours(),
]
