"""The training loop that phases 1 and 3 share: steps, epochs, optimizer, health."""
