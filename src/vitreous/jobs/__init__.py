"""What each command does, as functions that a notebook can call with the same names and defaults."""
