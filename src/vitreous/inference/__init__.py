"""A trained model where it is used: engines that answer for it."""
