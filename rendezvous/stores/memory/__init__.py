"""A store within the process: the one of a single machine, of the simulation, and of an agent that serves others."""
