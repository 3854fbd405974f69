"""The search for the cheapest layout."""
