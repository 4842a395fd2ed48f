"""The rolling replay memory and the play that fills it."""
