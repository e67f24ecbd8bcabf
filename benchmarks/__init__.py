"""Benchmarks of quadjoint against torchdiffeq, torchode, diffrax and torchsde; start with ``benchmarks/run.py``."""

from benchmarks import threads as threads  # one thread, decided before torch or jax is imported
