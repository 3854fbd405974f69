"""What needs a foreign system, or most users never start: a folder for each, over a kernel that knows none of them.

A folder has its code and its command; its tests lie where those of a package lie, and its guide is in docs/guides. An
extension imports the kernel, never another extension, and the kernel imports none: what two of them need lies below
both. Nothing is imported here.
"""
