"""Hand-written attention found in the captured forward of modules, verified, and rewritten into one operator."""
