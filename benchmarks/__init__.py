"""Measurements against peers; `make bench`."""
