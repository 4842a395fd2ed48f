"""Recipes: the typed schema, YAML, inheritance, overrides and every mistake at once."""
