"""This machine's hardware: accelerators, CPUs, NUMA nodes, and kernel interfaces."""
