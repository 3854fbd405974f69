"""The picture of a plan: layout, SVG and HTML."""
