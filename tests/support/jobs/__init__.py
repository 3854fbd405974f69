"""Real jobs for tests: on one node and on several, under torchrun, what their workers run, and attacks on them."""
