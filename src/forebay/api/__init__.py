"""The operators and applications of `import forebay as fb`. Users import none of these modules."""
