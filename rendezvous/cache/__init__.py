"""Between a member and the store: requests, one at a time for each purpose, and a copy of the keys that are watched."""
