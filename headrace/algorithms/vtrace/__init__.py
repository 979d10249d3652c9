"""Algorithms for rollouts of an earlier policy, which V-trace corrects."""
