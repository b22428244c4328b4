"""The torch provider: nodes as torch calls, on whatever device torch drives."""
