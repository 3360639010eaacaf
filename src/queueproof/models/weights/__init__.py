"""Where weights come from: safetensors folders and GGUF files, read in slices through memory maps."""
