"""The paper's statements and ours, experiment by experiment, each with the check that compares it with the records."""

from __future__ import annotations

from quadjoint.experiments.claims import classification, models, numerics, stochastic
from quadjoint.experiments.verdicts import Claim

TITLES = {
    "toy-gradient": "Accuracy of gradients",
    "integration": "Rules of integration",
    "memory": "Memory",
    "nested-spheres": "Nested spheres",
    "sines": "Time series: sine curves",
    "images": "Image classification",
    "ou": "Ornstein-Uhlenbeck process",
    "crossing": "Crossing trajectories",
}
CLAIMS: dict[str, list[Claim]] = {
    "toy-gradient": numerics.TOY_GRADIENT,
    "integration": numerics.INTEGRATION,
    "memory": numerics.MEMORY,
    "nested-spheres": models.NESTED_SPHERES,
    "sines": models.SINES,
    "images": classification.CLAIMS,
    "ou": stochastic.CLAIMS,
    "crossing": models.CROSSING,
}
IMAGES = classification.TITLES
