"""How it is now: the instrumented training loop, its clock, facts of workload and machine."""
