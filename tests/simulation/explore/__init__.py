"""A search through all interleavings of small clusters: `python -m tests.simulation.explore`, see `search`."""
