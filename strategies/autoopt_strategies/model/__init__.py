"""Strategies that change what is trained: fewer parameters, or a smaller model."""
