"""Tree ensembles."""
