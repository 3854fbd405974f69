"""What this machine has: accelerators, CPUs, NUMA nodes, and what the kernel says about them."""
