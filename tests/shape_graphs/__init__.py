"""Shape arithmetic in the spellings of exporters: random chains, their values, and their checks."""
