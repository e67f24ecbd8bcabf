"""Benchmarks of quadjoint against torchdiffeq, torchode, diffrax and torchsde; start with ``benchmarks/run.py``."""
