"""Hand-written attention found in the captured forward of modules, proven, and rewritten into one operator."""
