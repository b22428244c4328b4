"""HTTP: the protocol's paths, OpenAI's embeddings, metrics and the status page."""
