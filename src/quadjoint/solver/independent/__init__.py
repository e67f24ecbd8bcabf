"""Batches in which every sample takes steps of its own."""
