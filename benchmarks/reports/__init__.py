"""Slow trainings as they are reported in public, rebuilt small: what autoopt says of each, and what it reaches."""
