"""What is known of what was refused or has failed, and what to do: functions of a text, or of a file that cannot run.

    alone          an agent that runs alone, though its environment speaks of others
    habits         options, commands and words of other launchers
    corrections    values that are nearly right
    remarks        what is not read, and was perhaps meant to be
    scripts        files that are not there, or no scripts of Python's
    last_words     what a worker has left of its end
    refusals       a store or a node that another has
    next_steps     what to do about a worker's failure
    start_failure  programs that cannot be started, modules that are missing

The kernel asks them by name (`HINTS` in launcher/extensions/__init__.py) on its way to an error, never before. A hint
begins with a verb; "" stands for none, and then the kernel's own is shown.
"""
