"""A store within the process: for a single machine, for the simulation, and for an agent that serves others."""
