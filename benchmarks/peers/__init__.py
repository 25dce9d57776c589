"""The same work with alternatives to Forebay, and with Forebay."""
