"""A question about the run, from who asks to those who answer: this user's processes, this agent, the other nodes."""
