"""Profilers of a training: those that a user knows, and steps that grow slower."""
