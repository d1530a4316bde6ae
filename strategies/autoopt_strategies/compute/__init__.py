"""Strategies of the compute side: precision, compilation, memory layout, attention, the optimizer."""
