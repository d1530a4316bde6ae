"""Hand-written code of a model that native operators replace: found, checked, and edited in its source."""
