"""What is known of what was refused or has failed, and what to do: functions of a text, or of a file that cannot run.

    alone          an agent that runs alone, though its environment speaks of others
    habits         options, commands and words of other launchers
    commands       words and options of other tools, after meshctl
    corrections    values that are nearly right
    remarks        what is not read, and was perhaps meant to be
    scripts        files that are not there, or no scripts of Python's
    refusals       a store or a node that another has
    last_words     what a worker has left of its end
    start_failure  programs that cannot be started, modules that are missing
    nothing_to_run a Python that has found nothing to run
    hidden         a file that hides another of its name
    next_step      the failure that ended a job

The kernel asks them by name (`HINTS` in launcher/extensions/__init__.py) on its way to an error, never before. A hint
begins with a verb; "" stands for none, and then the kernel's own is shown.
"""
