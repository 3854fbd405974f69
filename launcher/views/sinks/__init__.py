"""Where events go: a file, a command, an address; and when a run that lacks nodes asks for some (`node_demand`, pure).

Each sink has a queue with a limit and a thread of its own. One that is slow, full or broken is reported once and loses
the oldest; none holds the loop, and only the end of the agent waits for the last event, a moment.
"""
