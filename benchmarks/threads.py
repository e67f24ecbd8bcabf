"""One thread for every library. Import this before torch, numpy or jax: they read these variables once."""

from __future__ import annotations

import os

# jax has no single switch: the first variable sizes its thread pool, the flags turn off threads inside a product.
os.environ.update(
    OMP_NUM_THREADS="1",
    MKL_NUM_THREADS="1",
    OPENBLAS_NUM_THREADS="1",
    NPROC="1",
    PJRT_NPROC="1",
    XLA_FLAGS="--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
    JAX_PLATFORMS="cpu",
    TORCHINDUCTOR_COMPILE_THREADS="1",
    KINETO_LOG_LEVEL="99",  # the profiler that measures memory otherwise writes to stderr
    TORCH_CPP_LOG_LEVEL="ERROR",
)


def set_threads() -> None:
    """Hold torch to one thread as well."""
    import torch

    torch.set_num_threads(1)
