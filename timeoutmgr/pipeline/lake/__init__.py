"""The history table of a lake: Delta, Iceberg, or Parquet files with a manifest."""
