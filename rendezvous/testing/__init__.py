"""Tools to test the agreement without machines: a virtual clock, a simulated cluster, faults and transcripts.

They are part of the product. `SimulatedCluster` runs the production protocol of many members over the production
memory store; `simulate.run(seed)` injects random faults into one and checks the invariants after every step;
`transcript.run(text)` plays a script and returns its record as text; `explore` visits all states of small clusters.
"""
