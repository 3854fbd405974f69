"""The live page of a run: a small server, and one HTML file without any other file or host.

    view         what the page shows, made from what the nodes say; pure
    shared_run   one answer for all readers
    admission    who may read
    server       paths and answers
    document     the HTML file (live.html), its policy and its saved form

It reads a run as any view does and changes nothing of it: no path of the server takes a request. Log lines and stacks
are the user's alone, so a reader is admitted before anything is answered. However many read, nodes are asked once.
"""
