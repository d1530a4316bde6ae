"""Strategies that change the model or its update rule: a package of its own, found by its entry points."""
