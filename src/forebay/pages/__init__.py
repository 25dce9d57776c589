"""Pages for people: Jinja2 templates with autoescape, one stylesheet, and charts in SVG.

Imports only value modules of Forebay. `apps` and `bench` import it and decide what a page shows.
"""
