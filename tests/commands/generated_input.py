"""Wrong command lines of a generator's making: good ones with one thing spoilt.

Options and bounds are those that the commands declare, recipe keys those of the schema, so new ones
are tried without anybody listing them here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import typer

from docs_build.cli_reference import commands
from qpd.recipe.schema import Recipe

# Good words for each command, in the folder that tests.commands.bad_files makes.
GOOD: dict[str, list[str]] = {
    "run": ["ci"],
    "distill": ["ci"],
    "quantize": ["half"],
    "finetune": ["run"],
    "show": ["run"],
    "recipes": [],
    "evaluate": ["run"],
    "export": ["run", "--format", "c"],
    "select": ["played"],
    "fpga": ["half", "--device", "xc7a15t"],
    "bench": ["run"],
    "report": ["run"],
    "push": ["run", "me/x", "--dry-run"],
    "sweep": ["mini-grid"],
    "doctor": [],
    "teacher info": ["agent.zip"],
    "teacher pull": ["me/x"],
    "train": ["ppo", "CartPole-v1"],
    "teacher card": ["agent.zip", "-o", "new"],
    "analyze actions": ["run"],
    "analyze fps": ["empty.json"],
    "analyze returns": ["played"],
    "analyze parity": ["played"],
    "analyze ablation": ["run", "--baseline", "run"],
    "analyze precision": ["played"],
    "analyze sizes": ["run"],
    "analyze pareto": ["played"],
    "analyze umap": ["run"],
    "analyze outputs": ["agent.zip"],
    "analyze quantization": ["run"],
    "analyze paper": ["played"],
    "analyze errors": ["played"],
    "analyze bits": ["played"],
    "analyze losses": ["played"],
    "analyze weights": ["agent.zip"],
    "analyze exploration": ["run"],
    "analyze robustness": ["empty.json"],
}
# Nothing there that any command could use; none may be taken for a hub id (NAME/NAME).
NOWHERE = (
    "./absent", "absent.zip", "../absent/x", "/proc/absent", "note.txt", "note.txt/x", "bare",
    "foreign", "x" * 300, "./ab\nsent", "./\u202eabsent", "./a\udcffb", "/dev/null", "-", "~", "*",
    "a\x1b[2Jb", "cut.zip", "text.zip", "zipfolder.zip", "cutmanifest", "./" + "y/" * 500,
)  # fmt: skip
TEXT_OPTIONS: dict[str, dict[str, tuple[str, ...]]] = {
    "evaluate": {
        "--policy": ("", "qta", "QAT", "teacher,qat", "\n"),
        "--acting": ("", "greed", "sampled", "0"),
        "--device": ("", "gpu", "cuda:x", "cuda:-1", "cuda:9999", "cpu:0:0"),
    },
    "run": {"--device": ("", "gpu", "cuda:x"), "--teacher": NOWHERE, "--vecnormalize": NOWHERE},
    "distill": {"--device": ("tpu", "cuda:99"), "--teacher": NOWHERE},
    "quantize": {"--device": ("gpu", "cuda:99")},
    "export": {"--format": ("", "C", "tflite", "c,onnx", "../c")},
    "bench": {
        "--sizes": ("XXXS", ",", "mlp-", "XXS,,S"),
        "--runtimes": ("", "tourch", "c,", "all,c"),
        "--threads": ("", "0", "-1", "1.5", "1,,2", "99999", "٣0"),
        "--frames": ("", "pong", "Noise"),
        "--ssh": ("", "@", "me@", "-oProxyCommand=x", "me@host:port", "me@host:99999999"),
    },
    "push": {"--formats": ("exe", "c,exe", "C"), "-o": ("run", "foreign", "note.txt", ".")},
    "report": {"-o": ("x.pdf", "bare", "no/x.html", ".", ""), "--devices": NOWHERE},
    "sweep": {"--cpus-per-cell": ("0", "-1", "nan", "inf", "1.5", "1e300")},
    "train": {"--set": ("", "=", "lr", "learning_rate=[", "no_such_key=1")},
    "analyze outputs": {
        "--temperatures": ("", "0", "-1", "nan", "inf", "1e400", "1,,2", "a", "1;2"),
    },
    "analyze umap": {"--critic": ("", "me", "Teacher")},
    "analyze pareto": {"--devices": NOWHERE},
}


@dataclass(frozen=True)
class Wrong:
    """A command line, and the recipe mine.yaml that it reads, if it does."""

    arguments: list[str]
    writes: bytes | None = None


def wrong_inputs(seed: int) -> Iterator[Wrong]:
    """Yield wrong command lines without end."""
    rng = np.random.default_rng(seed)
    kinds: tuple[Callable[[np.random.Generator], Wrong], ...] = (
        _number, _setting, _text, _path, _unknown_option, _recipe_text,
    )  # fmt: skip
    while True:
        yield kinds[int(rng.integers(len(kinds)))](rng)


def _pick(rng: np.random.Generator, items: Any) -> Any:
    items = list(items)
    return items[int(rng.integers(len(items)))]


def _options() -> dict[str, list[Any]]:
    """Numeric options of each command."""
    found: dict[str, list[Any]] = {}
    for path, command in commands():
        name = path.removeprefix("qpd").strip()
        if name in GOOD:
            context = typer.Context(command, info_name=path)
            found[name] = [
                parameter
                for parameter in command.params
                if parameter.param_type_name == "option"
                and str(parameter.display_type(context)).strip("<>").startswith(("int", "float"))
            ]
    return {name: options for name, options in found.items() if options}


def _number(rng: np.random.Generator) -> Wrong:
    """A number out of its declared bounds, or none at all."""
    by_command = _options()
    name = _pick(rng, sorted(by_command))
    option = _pick(rng, by_command[name])
    values = ["x", "", "1,0", "0x10", "--", "\n", "nan", "1e400", "-inf", "1" * 400]
    values += ["99999999999999999999", "-1", "-1e308"]
    if option.min is not None:
        values += [str(option.min - 1)] * 3
    if option.max is not None:
        values += [str(option.max + 1), str(option.max * 1000 + 1)] * 2
    return Wrong([*name.split(), *GOOD[name], f"{option.opts[0]}={_pick(rng, values)}"])


def _setting(rng: np.random.Generator) -> Wrong:
    """A recipe's number out of its bounds, or of another type; or a key that there is not."""
    key, about = _pick(rng, sorted(_recipe_numbers().items()))
    low = about.get("minimum", about.get("exclusiveMinimum"))
    high = about.get("maximum", about.get("exclusiveMaximum"))
    values = ["x", "[1]", "{a: 1}", ".nan", ".inf", "-.inf", "true", "'1'", "1" * 400, "1e999"]
    values += ["99999999999999999999", "[", "*a", "!!python/object:os.system x", "\x00"]
    values += [str(low - 1)] * 4 if low is not None else []
    values += [str(high + 1), str(high * 1000 + 1)] * 3 if high is not None else []
    if rng.random() < 0.1:
        key = _pick(rng, [key + "x", key.upper(), "." + key, key.replace(".", ".."), ""])
        values = ["1"]
    return Wrong([_pick(rng, ["run", "distill"]), "ci", "--set", f"{key}={_pick(rng, values)}"])


def _recipe_numbers() -> dict[str, dict[str, Any]]:
    schema = Recipe.model_json_schema()
    found = {}
    sections = {"": schema} | {
        f"{key}.": schema["$defs"][about["$ref"].rpartition("/")[2]]
        for key, about in schema["properties"].items()
        if "$ref" in about
    }
    for prefix, section in sections.items():
        for key, about in section["properties"].items():
            for choice in about.get("anyOf", [about]):
                if choice.get("type") in ("integer", "number"):
                    found[prefix + key] = choice
    return found


def _text(rng: np.random.Generator) -> Wrong:
    """A word where a command knows a few."""
    name = _pick(rng, sorted(TEXT_OPTIONS))
    option = _pick(rng, sorted(TEXT_OPTIONS[name]))
    words = [*name.split(), *GOOD[name]]
    if option in words:
        words = words[: words.index(option)]
    if name in ("run", "distill") and option != "--device":
        words = [name]
    joint = [option] if option == "-o" else [f"{option}="]
    value = _pick(rng, TEXT_OPTIONS[name][option])
    return Wrong([*words, *([*joint, value] if option == "-o" else [joint[0] + value])])


def _path(rng: np.random.Generator) -> Wrong:
    """A path that leads nowhere, or to something else."""
    # Not the hub's, a size table of no run at all, nor commands without a path.
    names = set(GOOD) - {"recipes", "doctor", "teacher pull", "train"}
    name = _pick(rng, sorted(names))
    return Wrong([*name.split(), "--", _pick(rng, NOWHERE), *_rest(name)])


def _rest(name: str) -> list[str]:
    return {"push": ["me/x"]}.get(name, [])


def _unknown_option(rng: np.random.Generator) -> Wrong:
    name = _pick(rng, sorted(GOOD))
    spoilt = ["--no-such", "--jsn", "-Z", "--json=1", "--set", "--=", "--\u202e", "---"]
    return Wrong([*name.split(), *GOOD[name], *GOOD[name][:1], _pick(rng, spoilt)])


GOOD_RECIPE = b"base: ci\nseed: 3\ndistill: {epochs: 2, lr: 0.001}\nstudent: {size: XXS}\n"


def _recipe_text(rng: np.random.Generator) -> Wrong:
    """A recipe file with bytes changed, or something else altogether."""
    text = bytearray(GOOD_RECIPE)
    for _ in range(int(rng.integers(1, 6))):
        place = int(rng.integers(len(text)))
        text[place : place + int(rng.integers(0, 3))] = _pick(
            rng, [b"\x00", b"\xff", b"\t", b"{", b"&a ", b"*a", b": ", b"\n  - ", b"!!", b"---\n"]
        )
    text += _pick(rng, [b"nonsense: 1\n", b"distill: 3\n", b"replay: {capacity: 1.0e+30}\n"])
    if rng.random() < 0.2:
        text = bytearray(_pick(rng, [b"", b"[]", b"[" * 5000, b"a", rng.bytes(300), b"null"]))
    return Wrong([_pick(rng, ["run", "distill", "sweep"]), "mine.yaml"], bytes(text))
