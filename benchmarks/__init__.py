"""Benchmarks of autoopt itself, run by hand: ``python -m benchmarks.truth`` and its neighbours."""
