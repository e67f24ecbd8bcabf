"""The experiments and presets by name, and what each is about. Nothing is imported here, so that help is quick."""

from __future__ import annotations

EXPERIMENTS = {
    "toy-gradient": "errors of the gradient where it is known in closed form",
    "integration": "errors of integration rules on the integral in the gradient",
    "memory": "peak memory of one gradient against the tolerance",
    "nested-spheres": "tell a disc from the ring around it",
    "sines": "a second-order ODE from many observations",
    "images": "classify MNIST, CIFAR-10 and SVHN by a convolutional ODE",
    "ou": "a neural SDE from samples of an Ornstein-Uhlenbeck process",
    "crossing": "a map whose trajectories cross",
    "clock": "the time of a training step of every method, in turns from the same weights",
}

PRESETS = {
    "quick": "two hours of one core: few widths and seeds",
    "evening": "an evening of two cores: the paper's epochs and learning rates at widths that fit; fewer images",
    "paper": "the paper's grid: thousands of runs",
}
