"""The error of `qpd.evaluation_target`, apart from it: its reader need not wait for torch."""


class TargetError(ValueError):
    """Nothing to evaluate there, or not as asked; one line says why."""
