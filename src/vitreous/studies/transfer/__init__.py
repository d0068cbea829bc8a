"""A transfer of a model to many tasks."""
