"""Strategies of the batch: its size, how it is split, and what must change with it."""
