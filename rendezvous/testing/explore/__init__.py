"""Every interleaving of a small cluster, one after the other: see `search`. `python -m rendezvous.testing.explore`."""
