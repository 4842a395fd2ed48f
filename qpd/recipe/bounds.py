"""Upper bounds that recipes and the command line share: far above any use, below what overflows.

Apart from the schema, so that `qpd --help` need not wait for it.
"""

MAX_EPISODES = 100_000
MAX_FRAMES = 1_000_000_000  # emulator frames of one game
MAX_SAMPLES = 100_000_000  # transitions held, or drawn in an epoch
MAX_EPOCHS = 1_000_000
MAX_SHARPNESS = 1000.0
MAX_SEED = 2**30  # seeds of games are derived from it by adding
MAX_FILM_SECONDS = 600.0
MAX_STATES = 100_000  # of a figure
MAX_TIMESTEPS = 10_000_000_000
