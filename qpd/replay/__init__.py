"""The rolling replay memory, which stacks frames when it is read, and the play that fills it."""
