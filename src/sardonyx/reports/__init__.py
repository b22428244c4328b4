"""What a program did or will do: memory timelines, weights in memory, profiles."""
