"""Systems that start agents, for tests and benchmarks: whole, on one machine, with nodes that can be killed."""
