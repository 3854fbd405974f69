"""What the Linux kernel offers and Python's library lacks: /proc, /sys, control groups, prctl, pidfds, shared memory.

Each module reads or sets one thing and knows nothing of jobs. What the kernel does not offer, or a container hides, is
reported as absent; no module logs, and none keeps state between two calls but `shared_page`, which agent and workers
have in common.
"""
