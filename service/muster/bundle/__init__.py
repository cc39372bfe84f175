"""Recorded jobs: what others left behind as tables, and files to ask without servers."""
