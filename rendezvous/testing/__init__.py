"""Tools to test agreement without machines: a virtual clock, a simulated cluster, faults and transcripts.

They are part of the product. `Cluster` runs the production protocol of many members over the production
memory store; `simulate.run(seed)` drives one through random faults and checks the invariants after every
step; `transcript.run(text)` plays a script and returns what happened as text.
"""
