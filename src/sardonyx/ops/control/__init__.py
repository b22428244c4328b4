"""Control flow: If, Loop, Scan, SequenceMap."""
