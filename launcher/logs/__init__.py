"""The workers' output, and where it goes: the terminal, log files, or both.

By default a worker inherits the agent's stdout and stderr and nothing here runs. A stream that is redirected
or tee'd goes through a pipe to the agent instead (`routes` says which), where one thread (`pump`) writes it
to the file that `layout` names and, line by line with a prefix, to the console. So a full disk or a slow
network file system affects the agent and never causes a failed write in the middle of training.

Import from the modules themselves: the pump is only loaded when a stream is captured.
"""
