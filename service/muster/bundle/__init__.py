"""Bundles: a job's recorded tables and roster in a directory, to be read without a gateway."""
