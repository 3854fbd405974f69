"""Systems that start agents, as tests and benchmarks need them: whole, on one machine, with nodes that can be killed."""
