"""What workers print, and where it lies: in the terminal, in log files, or in both.

By default a worker inherits the agent's stdout and stderr and nothing here runs. A stream that is redirected
or tee'd goes through a pipe to the agent instead (`routes` says which), where one thread (`pump`) writes it
to the file that `layout` names and, line by line with a prefix, to the console. So a full disk or a slow
network file system is the agent's trouble and never a failed write in the middle of training.

Import from the modules themselves: the pump is only loaded when a stream is captured.
"""
