"""When to believe a difference: pairs of processes, the sequential test, statistics."""
