"""Pages: Jinja2 templates with autoescape, one stylesheet, and charts in SVG.

May import value modules only. `apps` and `bench` decide what a page shows.
"""
