"""Dynamic batching: which requests form a batch, when it runs, and how tensors are joined."""
