"""Evaluation over full games, and films of them."""
