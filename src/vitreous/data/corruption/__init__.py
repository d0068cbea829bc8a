"""The kinds of corruption, one function each."""
