"""Networks for tests: hosts in namespaces, a proxy that can be cut, and the metadata servers of clouds."""
