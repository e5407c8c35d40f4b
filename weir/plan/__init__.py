"""The way from the graph that an author wrote to the one that runs, and what people read of it."""
