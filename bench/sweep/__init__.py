"""Single ops in all types, sizes and attributes, timed against other runtimes."""
