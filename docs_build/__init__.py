"""What `mkdocs build` needs beyond Markdown: pages made from the code, equations, a site check."""
