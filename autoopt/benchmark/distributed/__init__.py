"""One training in several processes: the group, its shares of the batches, and steps that are taken together."""
