"""Strategies of the schedule: the learning rate over time, and how often training is interrupted."""
