"""What to do about what was refused: pure functions of a text, and of a file that cannot run.

    habits         options, commands and words of other launchers
    corrections    values that are nearly right
    scripts        files that are not there, or no scripts of Python's
    start_failure  programs that cannot be started, modules that are missing

The kernel asks them by name (`HINTS` in launcher/extensions/__init__.py) on its way to an error, never before. A hint
begins with a verb; "" stands for none, and then the kernel's own is shown.
"""
