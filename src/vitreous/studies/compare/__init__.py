"""A comparison of models."""
