"""Reports for users and programs: rounds, failures and their cause, events, the run's outcome."""
