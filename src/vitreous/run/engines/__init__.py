"""Engines of a model: which one answers, how it is converted and proved, and what is kept of that."""
