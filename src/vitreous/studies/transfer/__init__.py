"""A model transferred to many tasks: which they are, what is measured on each, and in what time."""
