"""The models of a server: their files, signatures, and which versions are loaded."""
