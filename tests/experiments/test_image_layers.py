"""The layers of the image experiments."""

from __future__ import annotations

import torch

from quadjoint.experiments.image_layers import ConvDynamics, Downsampling


def test_downsampling_and_convolutions_keep_what_the_ode_needs():
    for size, channels, side in ((28, 1, 11), (32, 3, 13)):
        y = Downsampling(channels, 10)(torch.rand(2, channels, size, size))
        assert y.shape == (2, 10, side, side)
        assert ConvDynamics(10, 4)(torch.tensor(0.0), y).shape == y.shape
