"""What to try, and when to believe it."""
