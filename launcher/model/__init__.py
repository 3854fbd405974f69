"""Values that every part shares: mesh, node, topology, traffic, errors and text helpers."""
