"""``autoopt compare``: a verdict on two builds, plans or revisions that the candidate cannot talk its way into."""
