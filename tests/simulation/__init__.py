"""A cluster without machines: a virtual clock, simulated nodes and networks, faults, and transcripts.

`SimulatedCluster` runs the protocol of the product, with many members, over the product's memory store.
`simulate.run(seed)` injects random faults into one and checks the invariants after every step;
`python -m tests.simulation` does so for many seeds. `transcript.run(text)` plays a script and returns its record as
text. `explore` visits all states of small clusters.
"""
