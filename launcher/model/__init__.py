"""The values common to all packages: mesh, node, topology, traffic, errors, text."""
