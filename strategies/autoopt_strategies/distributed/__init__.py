"""Strategies that spread training over processes, and shorten what they say to each other."""
