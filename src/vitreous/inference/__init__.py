"""A trained model in use: the engines that compute it, and what is predicted, measured and exported with them."""
