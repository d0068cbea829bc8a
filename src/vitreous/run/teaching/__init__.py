"""A model as a teacher: how it is opened and asked, about pictures and their places."""
