"""What `import forebay as fb` offers: the operators and applications over streams of objects.

A user imports none of these modules; `forebay` itself has the names.
"""
