"""The parts of a simulated cluster: nodes, processes, networks and a store on one virtual clock."""
