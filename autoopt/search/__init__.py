"""The search for a better plan: what to try, when to believe a difference, when to keep a change."""
