"""Generate the error reference from the registry of codes."""

from __future__ import annotations

from docs_build.markdown import markdown_table
from qpd.errors.codes import ErrorCode

HEADER = ("code", "meaning", "what to do")
# Meaning of a code's first digit.
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
    """Return Markdown: a table of codes for each group, with an anchor for each code."""
    parts = [
        "# Errors",
        "An error that you can fix is one line on stderr (one line per mistake for a recipe), with "
        "exit code 2. QPD leaves no half-written files behind. The line names the file, the key "
        "and the value, says what is valid, and ends with a code:",
        "```text\nerror: mine.yaml:11: lr: unknown key; did you mean distill.lr? [Q103]\n```",
        "Codes are stable: a code keeps its meaning in all later versions, so scripts should test "
        "the code rather than the text. Exit code 130 means that the command was interrupted. Exit "
        "code 70 is a bug in QPD: the line says in which file the traceback is, `traceback.txt` in "
        "the run directory or else a temporary file; please report it. With `--json`, errors have "
        "the same form.",
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
