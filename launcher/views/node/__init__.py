"""The agents' part in showing a run: each says what its node does, and passes on the questions of its user."""
