"""The version of QPD, apart from its face: whoever needs the number need not import the rest."""

__version__ = "0.1.0"
