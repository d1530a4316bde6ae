"""Hand-written attention found in a traced forward, proven, and said in one operator."""
