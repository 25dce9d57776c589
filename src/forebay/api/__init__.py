"""The operators and applications over streams of objects that `import forebay as fb` offers.

Users import none of these modules: `forebay` itself has the names.
"""
