"""Scaling efficiency as autoopt tells it, beside that of a script by hand that torchrun starts."""
