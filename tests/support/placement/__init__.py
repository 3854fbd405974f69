"""Clusters and plans for tests of the placement, with proofs and counts of their own."""
