"""Hand-written attention of public models: what is found, whether it is equal, what it brings."""
