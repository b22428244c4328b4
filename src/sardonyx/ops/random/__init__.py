"""Random number generators and Dropout."""
