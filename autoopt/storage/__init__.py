"""A run on disk: its directory, its journal, and the durable steps by which it is resumed."""
