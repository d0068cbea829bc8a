"""What a model is trained for: small modules that turn a batch into a loss. None of them knows the loop."""
