"""Tests of states of rows."""
