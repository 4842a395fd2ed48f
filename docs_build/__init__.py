"""Support for `mkdocs build`: pages generated from the code, equations, figures, a site check."""
