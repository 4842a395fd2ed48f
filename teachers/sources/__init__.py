"""Where agents come from: files, RL Zoo folders, the Hugging Face hub."""
