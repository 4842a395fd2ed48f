"""The reference of error codes, from the registry itself."""

from __future__ import annotations

from docs_build.markdown import markdown_table
from qpd.errors.codes import ErrorCode

HEADER = ("code", "meaning", "what to do")
# The meaning of a code's first digit.
GROUPS = {
    "1": "Recipes",
    "2": "Run directories",
    "3": "Teachers",
    "4": "The Hugging Face hub",
    "5": "Environments",
    "6": "Machine, packages and files",
    "7": "Students and exports",
    "8": "Training, benchmarks and sweeps",
    "9": "The command line",
}


def errors_page() -> str:
    """Return Markdown with a table of codes per group, and an anchor for every code."""
    parts = [
        "# Errors",
        "An error that you can mend is one line on stderr, or one line for each mistake of a "
        "recipe, and exit code 2; nothing "
        "half-written is left behind. The line names the file, "
        "the key and the value, says what would be right, and ends with a code:",
        "```text\nerror: mine.yaml:11: lr: unknown key; did you mean distill.lr? [Q103]\n```",
        "Codes are stable: one keeps its meaning in all later versions, so that a script may "
        "branch on it where it should not on the words. Exit code 130 is an interruption; a "
        "traceback with exit code 1 is a bug of QPD's: please report it. With `--json`, errors "
        "are these same lines.",
    ]
    for digit, title in GROUPS.items():
        rows = [
            [f"[`{code.id}`](#{code.id}){{ #{code.id} }}", code.title, code.remedy]
            for code in ErrorCode
            # Q103: the digit after the Q is the group's.
            if code.id[1] == digit
        ]
        parts += [f"## {title}", markdown_table(HEADER, rows)]
    return "\n\n".join(parts) + "\n"
