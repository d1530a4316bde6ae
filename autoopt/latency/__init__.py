"""``autoopt latency``: a trained model within a latency, and the acceptance test of what is served."""
