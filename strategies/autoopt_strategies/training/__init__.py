"""Strategies of the training itself: the batch, the optimizer, the learning rate, and what interrupts the steps."""
