"""When to keep a change: quality by risk class, trainings, time to target, the verdict."""
