"""What a node of a job of several does before its supervisor is forked: find the others, and make room for itself.

It determines this node's address and its name among the agents of this host, probes the store or serves it, ends what
an earlier agent of this run has left. What can never run is refused by launcher/placement/adapter/feasibility.py.

Everything is refused here in a sentence and with an exit code, before anything was written to the store. Nothing here
may start a thread: the supervisor is still to be forked.
"""
