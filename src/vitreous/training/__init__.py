"""The one training loop, its optimizers, and what it needs to go on after an interruption."""
