"""Rows in Delta tables and Parquet files."""
