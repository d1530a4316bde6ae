"""autoopt against an exhaustive search, and against samplers at the same budget."""
