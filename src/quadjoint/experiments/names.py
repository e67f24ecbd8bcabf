"""The experiments by name, and what each is about. Nothing is imported here, so that help is quick."""

from __future__ import annotations

EXPERIMENTS = {
    "toy-gradient": "errors of the gradient where it is known in closed form",
    "memory": "peak memory of one gradient against the tolerance",
    "nested-spheres": "tell a disc from the ring around it",
    "sines": "a second-order ODE from many observations",
    "images": "classify MNIST, CIFAR-10 and SVHN by a convolutional ODE",
    "ou": "a neural SDE from samples of an Ornstein-Uhlenbeck process",
    "crossing": "a map whose trajectories cross",
}
