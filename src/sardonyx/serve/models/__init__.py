"""The models of a server: where they are, what they accept, and which of them are loaded."""
