"""Strategies of the input side: reading, preparing, collating and moving batches."""
