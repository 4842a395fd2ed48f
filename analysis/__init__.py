"""Tables and figures, made from run directories; never from trainer objects."""
