"""What a leader decides, as pure functions of a View, the time and the settings; the entry is `decide`.

`charge`, `budget` and `quarantine` are the cost of a round that failed, `candidates` the members of the next one.

Each decision has its reason, a value that people read as a sentence. No function here reads a clock or the store, or
remembers anything.
"""
