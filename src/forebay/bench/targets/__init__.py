"""The servers that can be measured, one file for each protocol."""
