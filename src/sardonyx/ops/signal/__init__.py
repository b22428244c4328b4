"""Signal processing: DFT, STFT, window functions and MelWeightMatrix."""
