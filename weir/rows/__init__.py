"""What rows are: schemas, system columns, conversions from and to Python, Polars and Arrow."""
