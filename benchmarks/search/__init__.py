"""How much of the attainable speedup a search finds in how many minutes."""
