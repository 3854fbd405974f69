"""A search through all interleavings of small clusters: `python -m rendezvous.testing.explore`, see `search`."""
