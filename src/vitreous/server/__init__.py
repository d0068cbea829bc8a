"""A server that answers for models over HTTP."""
