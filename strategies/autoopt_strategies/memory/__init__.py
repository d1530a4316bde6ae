"""Strategies of device memory: what is kept, what is computed again, how it is allocated."""
