"""The stores of a job's agreement: the contract of a store, and a package per kind, imported by a run that uses it."""
