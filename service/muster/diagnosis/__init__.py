"""Load the catalogue of diagnoses, run their steps, raise findings, form the verdict."""
