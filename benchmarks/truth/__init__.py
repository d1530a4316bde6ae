"""How true the verdicts are, in simulated time and live."""
