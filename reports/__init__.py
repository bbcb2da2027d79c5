"""From Parquet to tables, figures, pages and SQL."""
