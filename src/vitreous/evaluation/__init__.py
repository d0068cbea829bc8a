"""How good a model is, and what its features are worth."""
