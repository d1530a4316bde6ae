"""Predicted against measured steps and gains."""
