"""The live page of a run: a small server, and one HTML file without any other file or host.

    shared_run   one answer for all readers
    admission    who may read
    server       paths and answers
    document     the HTML file (live.html), its policy and its saved form
    part             opens and closes it with the leadership; its data come by `shared_run`, as for any reader
    options          `--serve`
    serve, command   `meshctl serve`, and its command line

It reads a run as any view does, and no request changes anything of it. Log lines and stacks are the user's alone, so a
reader is admitted before anything is answered. However many read, the nodes are asked once.
"""
