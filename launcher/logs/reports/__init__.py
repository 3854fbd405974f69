"""What people and programs are told: rounds as they go by, failures and their cause, events, how the run ended."""
