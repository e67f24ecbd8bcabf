"""The layers of the image experiments."""

from __future__ import annotations

from torch import Tensor, nn


class ConvDynamics(nn.Module):
    """Autonomous dynamics on images: three padded 3x3 convolutions with softplus between them.

    >>> import torch
    >>> ConvDynamics(10, hidden=4)(torch.tensor(0.0), torch.zeros(2, 10, 5, 5)).shape
    torch.Size([2, 10, 5, 5])
    """

    def __init__(self, channels: int, hidden: int) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(channels, hidden, 3, padding=1),
            nn.Softplus(),
            nn.Conv2d(hidden, hidden, 3, padding=1),
            nn.Softplus(),
            nn.Conv2d(hidden, channels, 3, padding=1),
        )

    def forward(self, t: Tensor, y: Tensor) -> Tensor:
        return self.net(y)


class Downsampling(nn.Sequential):
    """The layers before the image ODE: normalise, convolve, pool, convolve; no padding.

    >>> import torch
    >>> Downsampling(1, 10)(torch.zeros(2, 1, 28, 28)).shape
    torch.Size([2, 10, 11, 11])
    """

    def __init__(self, in_channels: int, channels: int) -> None:
        super().__init__(
            nn.BatchNorm2d(in_channels),
            nn.ReLU(),
            nn.Conv2d(in_channels, channels, 3),
            nn.MaxPool2d(2),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3),
        )
