"""Linear models and support vector machines."""
