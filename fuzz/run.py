"""`python -m fuzz.run TARGET [libFuzzer options] CORPUS...`: fuzz one parser with atheris."""

import sys

import atheris

from fuzz.measured import MAX_ADDED_BYTES, MAX_CLOCK_SECONDS

# The parsers and the pure Python under them, in which coverage is counted.
_INSTRUMENTED = ["qpd", "teachers", "students", "yaml", "zipfile", "pickletools"]


def main() -> None:
    """Run the target that the first argument names, until libFuzzer stops."""
    # Instruments modules as they are imported, so that nothing of ours may be imported before.
    with atheris.instrument_imports(include=_INSTRUMENTED):
        from fuzz.mutators import MUTATORS
        from fuzz.targets import TARGETS
    if len(sys.argv) < 2 or sys.argv[1] not in TARGETS:
        sys.exit(f"usage: python -m fuzz.run {{{','.join(TARGETS)}}} [options] CORPUS...")
    # libFuzzer parses the rest of the command line itself, where options may be given again.
    name = sys.argv[1]
    sys.argv[1:2] = [f"-timeout={MAX_CLOCK_SECONDS}", f"-rss_limit_mb={MAX_ADDED_BYTES >> 20}"]
    # libFuzzer restarts itself by this command, in a shell, to merge corpora.
    sys.argv[0] = f"{sys.executable} -m fuzz.run {name}"

    def test_one_input(content: bytes) -> None:
        TARGETS[name].check(content)

    mutator = MUTATORS.get(name)
    options = {"custom_mutator": mutator} if mutator else {}
    atheris.Setup(sys.argv, test_one_input, **options)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
