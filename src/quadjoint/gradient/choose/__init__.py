"""The automatic choice of a gradient."""
