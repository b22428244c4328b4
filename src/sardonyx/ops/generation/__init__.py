"""Text generation: beam search, greedy search, sampling."""
