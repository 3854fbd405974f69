"""The steps of a node of a multi-machine job before it forks its supervisor."""
