"""What `tests/test_extend.py` adds to the package from outside."""
