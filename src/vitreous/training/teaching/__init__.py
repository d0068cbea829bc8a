"""A model as a teacher: how it is opened and asked, about images and their places."""
