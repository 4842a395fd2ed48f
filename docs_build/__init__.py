"""The parts of `mkdocs build` beyond Markdown: pages made from the code, and a site check."""
