"""Where a job's agreement lies: one module per kind of store, each imported only by a run that uses it."""
