"""The simulated world: machines, processes, networks and a store on one virtual clock."""
