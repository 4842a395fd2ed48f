"""SIGTERM as an exception, apart from a SystemExit of a user's own code."""


class Terminated(SystemExit):
    """Somebody asks this process to end, so that whatever it was at is not to blame."""
