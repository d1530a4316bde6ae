"""Planted regressions in histories of thirty-two steps, bisected on simulated machines."""
