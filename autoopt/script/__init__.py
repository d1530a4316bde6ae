"""A user's training script as one more kind of trial: watched, stopped at steps' ends, given a setup, never edited."""
