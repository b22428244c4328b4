"""Reports on programs: memory timelines, memory by node, weights in memory, profiles."""
