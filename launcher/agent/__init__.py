"""The agent of one node: startup, health, membership, and the loop over agreement, workers and signals."""
