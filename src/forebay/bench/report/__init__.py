"""Documents of runs, formats of other tools, and the page of a report."""
