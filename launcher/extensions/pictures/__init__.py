"""Pictures of a plan: what `meshctl plan` writes by --svg and --html.

`picture` draws one SVG, and a page that is the SVG and tables. It shows what the plan says and decides nothing; it
reads no file and writes none, the caller does. Without these options nothing here is imported. Pictures of the
documentation and of the benchmarks are drawn there.
"""
