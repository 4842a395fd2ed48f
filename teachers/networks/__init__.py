"""SB3's policy networks, rebuilt from the shapes of their tensors.

Whatever the tensors and the plain data beside them do not prove to be one of SB3's own networks is
refused, never guessed. Each network maps float observations `[batch, ...]` to its actor's outputs,
in the units in which SB3 has them, and to values `[batch, 1]`.
"""
