"""Dynamic batching: which queued requests run together, when, and how their tensors are joined."""
