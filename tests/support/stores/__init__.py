"""Stores for tests: real etcd servers, faults in front of them, other clients, and jobs as they lie in a store."""
