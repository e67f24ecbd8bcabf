from __future__ import annotations

import warnings

import torch
from torch.autograd import forward_ad

# The first dual number of a process loads decompositions of torch, which warn of torch's own use of torch.jit.
with warnings.catch_warnings(), forward_ad.dual_level():
    warnings.simplefilter("ignore")
    forward_ad.make_dual(torch.zeros(()), torch.zeros(()))
