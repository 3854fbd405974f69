"""What a cloud announces about this machine before it takes it away, as its metadata server says.

    providers   how each cloud announces it, and how often it may be asked
    watcher     the thread that asks
    notice      what is announced, and what follows from it; pure
    part        of the agent: when to leave, and how long workers may save

It says when this node should leave and never ends a worker itself. A server that does not answer, or says what is not
understood, costs the notices and no job. Loaded a second after the first workers, and only in a cloud whose firmware
shows it, or if `--notices` asks.
"""
