"""Trials on other machines: hosts that start them there, and the launcher that asks hosts."""
