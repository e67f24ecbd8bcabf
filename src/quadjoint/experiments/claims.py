"""The paper's statements, experiment by experiment."""

from __future__ import annotations

from quadjoint.experiments.published import (
    Claim,
    close_gradients,
    constant_memory,
    faster,
    growing_memory,
    growth,
    irregular_cost,
    only,
    same,
    trend,
)

_ODE = ("direct", "adjoint", "seminorm", "gq-paper", "gq", "discrete", "auto")
_ADJOINT = _ODE[1:]

TITLES = {
    "toy-gradient": "Accuracy of gradients",
    "memory": "Memory",
    "nested-spheres": "Nested spheres",
    "sines": "Time series: sine curves",
    "images": "Image classification",
    "ou": "Ornstein-Uhlenbeck process",
    "crossing": "Crossing trajectories",
}

CLAIMS: dict[str, list[Claim]] = {
    "toy-gradient": [
        Claim(
            "The GQ method is as accurate as the standard adjoint method.", close_gradients("gq-paper", "adjoint", 3.0)
        ),
        Claim("Ours: the discrete adjoint gives the gradient of direct.", close_gradients("discrete", "direct", 1.001)),
    ],
    "memory": [
        Claim("The GQ method's memory is constant in the tolerance.", constant_memory("gq-paper")),
        Claim("The adjoint method's memory is constant in the tolerance.", constant_memory("adjoint")),
        Claim("The direct method's memory grows with the steps.", growing_memory("direct")),
        Claim("ACA's memory grows with the steps.", growing_memory("aca")),
        Claim("MALI's memory does not grow with the steps.", constant_memory("mali")),
    ],
    "nested-spheres": [
        Claim("GQ is faster than the adjoint for large models.", faster("gq-paper", "adjoint")),
        Claim("GQ is faster than the seminorm for large models.", faster("gq-paper", "seminorm")),
        Claim("GQ's time grows less with the width than the adjoint's.", growth("gq-paper", "adjoint")),
        Claim("Direct backpropagation is the fastest.", faster("direct", "gq-paper")),
        Claim("All methods reach the same accuracy.", same("test_accuracy", _ODE, relative=0.0, absolute=5.0)),
        Claim("A larger C takes more time.", trend("C", "c", ("seconds_per_gradient",), "gq-paper", rising=True)),
        Claim("Ours: discrete is at least as fast as the paper's method.", faster("discrete", "gq-paper")),
    ],
    "sines": [
        Claim("GQ is faster than the adjoint for large models.", faster("gq-paper", "adjoint")),
        Claim("GQ is faster than the seminorm for large models.", faster("gq-paper", "seminorm")),
        Claim("GQ's time grows less with the width than the adjoint's.", growth("gq-paper", "adjoint")),
        Claim("Direct backpropagation is the fastest.", faster("direct", "gq-paper")),
        Claim("All methods reach the same error.", same("test_mse", _ODE, relative=0.1, absolute=1e-3)),
        Claim(
            "Irregular times, merged, cost much more than regular ones.",
            irregular_cost("regular", "merged", "gq-paper", 1.5),
        ),
        Claim("Ours: discrete is faster than the paper's method.", faster("discrete", "gq-paper")),
    ],
    "images": [
        Claim(
            "The accuracies on MNIST are comparable.",
            only(same("test_accuracy", _ADJOINT, relative=0.0, absolute=2.0), dataset="mnist"),
        ),
        Claim(
            "With a batch of 16, GQ is faster than the adjoint.",
            only(faster("gq-paper", "adjoint"), dataset="mnist", batch=16),
        ),
        Claim(
            "With a batch of 256, GQ is slower than the adjoint.",
            only(faster("adjoint", "gq-paper"), dataset="mnist", batch=256),
        ),
    ],
    "ou": [
        Claim("GQ is faster than the SDE adjoint.", faster("gq-paper", "torchsde-adjoint")),
        Claim("Direct backpropagation through the SDE is faster than GQ.", faster("torchsde-direct", "gq-paper")),
        Claim(
            "The KL divergences are comparable.",
            same("test_kl", (*_ODE, "torchsde-direct", "torchsde-adjoint"), relative=0.3, absolute=0.02),
        ),
        Claim("More cosines, smaller KL.", trend("cosines", "cosines", ("final", "test_kl"), "discrete", rising=False)),
        Claim(
            "More cosines, more time.",
            trend("cosines", "cosines", ("seconds_per_gradient",), "discrete", rising=True),
        ),
        Claim("Ours: discrete is faster than the paper's method.", faster("discrete", "gq-paper")),
    ],
    "crossing": [
        Claim("GQ is faster than the adjoint for large models.", faster("gq-paper", "adjoint")),
        Claim("GQ is faster than the seminorm for large models.", faster("gq-paper", "seminorm")),
        Claim("Direct backpropagation is the fastest.", faster("direct", "gq-paper")),
        Claim("All methods reach the same error.", same("test_mse", _ODE, relative=0.1, absolute=1e-3)),
        Claim("Ours: discrete is faster than the paper's method.", faster("discrete", "gq-paper")),
    ],
}
