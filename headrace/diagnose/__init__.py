"""Finds where the wall time of any training script goes, measured from outside and without changing it."""
