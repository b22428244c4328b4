"""Shared basics without knowledge of models: logging, locks, files, record classes, imports."""
