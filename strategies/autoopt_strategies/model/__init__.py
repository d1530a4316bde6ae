"""Strategies that change the model itself; only with ``--allow model``."""
