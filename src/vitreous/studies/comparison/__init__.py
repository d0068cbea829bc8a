"""A comparison of models: its cells, their trainings, and what to say of them."""
