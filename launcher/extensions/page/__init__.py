"""The live page of a run: one HTML file without any other file or host, and the paths that its script asks.

    shared_run       one answer for all readers
    paths            what is answered, by launcher/views/http
    document         the HTML file (live.html), its policy and its saved form
    options          `--serve`
    serve, command   `meshctl serve`, and its command line

It reads a run as any view does, and no request changes anything of it. Log lines and stacks are the user's alone, so a
reader is admitted before anything is answered. However many read, the nodes are asked once.
"""
