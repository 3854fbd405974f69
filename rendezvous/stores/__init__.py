"""Where a job's agreement lies: the contract of a store, and a package per kind, imported by a run that uses it."""
