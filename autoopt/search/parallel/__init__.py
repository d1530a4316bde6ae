"""Looks on several places at once, and what neighbours cost one another there."""
