"""Files and folders as sources and sinks: JSON lines, CSV, text, archives of them."""
