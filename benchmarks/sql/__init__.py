"""SQL beside the builder, DuckDB and Spark SQL, and what a user sees of texts with mistakes."""
