"""Fake machines: the files by which a kernel tells of CPUs, NUMA nodes and devices."""
