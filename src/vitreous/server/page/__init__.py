"""The page to look through models: what a browser is given, and what it asks for."""
