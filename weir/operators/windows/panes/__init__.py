"""Windows of panes: their aggregates, and what is told of them."""
