"""The stable code of every error that a user can cause, for scripts to branch on.

A code keeps its meaning for good; a retired one is never reused. `UserError` carries one to the
command line, which prints `error: TEXT [Q101]`.
"""

from __future__ import annotations

from enum import Enum


class ErrorCode(Enum):
    """One kind of error: `id` as printed, `title`, and `remedy`, what to do about it."""

    # Q1: recipes and grids; Q2: run directories; Q3: teachers; Q4: the hub; Q5: environments; Q6:
    # the machine; Q70 and Q71: students and their exports; Q8: training, benchmarks and sweeps; Q9:
    # the command line.
    RECIPE_NOT_FOUND = (
        "Q101",
        "No such recipe, base recipe or grid",
        "Give a path, or a name that `qpd recipes` lists.",
    )
    RECIPE_NOT_YAML = (
        "Q102",
        "The recipe is not valid plain YAML",
        "Fix the line named: UTF-8 text, spaces instead of tabs, each key once, no anchors.",
    )
    RECIPE_UNKNOWN_KEY = (
        "Q103",
        "The recipe has an unknown key",
        "Use the suggested key; the [reference](recipe-keys.md) lists them all.",
    )
    RECIPE_WRONG_TYPE = (
        "Q104",
        "A recipe value has the wrong type",
        "Write a number, text, a list or a mapping, as the message says.",
    )
    RECIPE_WRONG_VALUE = (
        "Q105",
        "A recipe value is out of range, or not one of the choices",
        "Use a value that the message allows.",
    )
    RECIPE_MISSING_KEY = (
        "Q106",
        "The recipe lacks a required key",
        "Add the key, or inherit it with `base`.",
    )
    RECIPE_CONTRADICTION = (
        "Q107",
        "Recipe keys contradict each other, or recipes inherit in a circle",
        "Change one of the keys that the message names.",
    )
    RECIPE_OVERRIDE = (
        "Q108",
        "A `--set` is not `key=value`, or sets a key that this command cannot change",
        "Write `--set distill.lr=1e-3`; to change a finished phase, start a new run.",
    )
    STUDENT_MISFIT = (
        "Q109",
        "The student does not fit the environment's observations",
        "Use a convolutional size (`XXS` to `XXL`) for frames, `mlp-N` for vectors.",
    )
    GRID_WRONG = (
        "Q110",
        "The sweep's grid has no cells, or cells with identical settings",
        "Change `axes`, `include` or `exclude` as the message says.",
    )
    RUN_NOT_A_RUN = (
        "Q201",
        "The path is not a run directory",
        "Give a folder made by `qpd run` or `qpd distill`: it contains manifest.json.",
    )
    RUN_OTHER_RECIPE = (
        "Q202",
        "The run directory was started with another recipe or teacher",
        "Choose another `-o`, or remove the folder.",
    )
    RUN_IN_USE = (
        "Q203",
        "Another process is using the folder",
        "Wait for it to finish, or choose another `-o`.",
    )
    RUN_DAMAGED = (
        "Q204",
        "A file in the run directory is missing, damaged or edited by hand",
        "Restore the file named, or start a new run.",
    )
    RUN_FORMAT = (
        "Q205",
        "The run directory has a format that this version cannot read",
        "Use the version of QPD that wrote it (`manifest.json` names it), or start a new run.",
    )
    RUN_UNWRITABLE = (
        "Q206",
        "The run directory cannot be created or written",
        "Choose an `-o` on a writable disk.",
    )
    RUN_PHASE_MISSING = (
        "Q207",
        "An earlier phase of the run has not finished",
        "First run the command that the message names.",
    )
    RUN_CHECKPOINT = (
        "Q208",
        "The checkpoint is damaged or does not match the run",
        "Restore a copy of the file, or do as the message says; a finished phase 1 is not lost.",
    )
    NOTHING_MEASURED = (
        "Q209",
        "The runs lack the measurements to show",
        "Run what the message names, for example `qpd evaluate RUN`, or name other runs.",
    )
    TEACHER_NOT_FOUND = (
        "Q301",
        "No such agent",
        "Give an SB3 zip, an RL Zoo folder, a hub id or `embedded`.",
    )
    TEACHER_DAMAGED = (
        "Q302",
        "The file is damaged, or not an agent saved by Stable-Baselines3",
        "Save or download the zip again.",
    )
    TEACHER_UNSUPPORTED = (
        "Q303",
        "The agent's algorithm, network or spaces are not supported",
        "Use a PPO, A2C, TRPO, ARS, DQN, QR-DQN, SAC, TQC, TD3 or DDPG agent with CnnPolicy, "
        "MlpPolicy, or MultiInputPolicy on vectors, and finite bounds of its actions.",
    )
    TEACHER_WRONG_ENVIRONMENT = (
        "Q304",
        "The agent's actions or observations do not match the environment's",
        "Name the environment that the agent was trained on (`teacher.env`, `--env`).",
    )
    TEACHER_NOT_FINITE = (
        "Q305",
        "The agent's weights contain NaN or infinity",
        "Its training diverged: use an earlier checkpoint.",
    )
    TEACHER_UNCLEAR = (
        "Q306",
        "The agent's environment, algorithm or number of actions is unknown",
        "Set `teacher.env` and `teacher.algo`, or give `--env`.",
    )
    TEACHER_SETTINGS = (
        "Q307",
        "A file beside the agent (args.yml, config.yml, vecnormalize.pkl) is missing or damaged",
        "Copy the file from the folder in which the agent was trained.",
    )
    TEACHER_TRAINING = (
        "Q308",
        "The agent cannot be trained, or its training cannot be resumed",
        "Use an algorithm, an environment and a folder that the message allows.",
    )
    HUB_UNREACHABLE = (
        "Q401",
        "The Hugging Face hub cannot be reached",
        "Go online, or follow the manual steps in the message.",
    )
    HUB_REFUSED = (
        "Q402",
        "The Hugging Face hub refuses access: no token, or one without write permission",
        "Run `hf auth login` with a write token, or use `--dry-run`.",
    )
    ENVIRONMENT_UNKNOWN = (
        "Q501",
        "No such environment",
        "Use one of the suggested ids.",
    )
    ENVIRONMENT_UNSUPPORTED = (
        "Q502",
        "The environment is not supported, or not by this command",
        "Use an Atari game, or an environment with flat observations; or change what the message"
        " names.",
    )
    ENVIRONMENT_FAILED = (
        "Q503",
        "The environment failed while it was played",
        "Mend the environment, then give the same command again: a run continues from its last"
        " checkpoint.",
    )
    DEVICE_MISSING = (
        "Q601",
        "No such device",
        "Use `--device cpu` or `auto`; `qpd doctor` lists the devices.",
    )
    PACKAGE_MISSING = (
        "Q602",
        "An optional package or program is not installed",
        "Install what the message names.",
    )
    FILE_SYSTEM = (
        "Q603",
        "A file or folder cannot be read or written",
        "Check the path that the message names: its folder, its permissions, the free disk space.",
    )
    OUTPUT_TAKEN = (
        "Q604",
        "The output path is already taken by other files",
        "Choose another `-o`.",
    )
    LOGGING_SERVICE = (
        "Q605",
        "Weights & Biases cannot be used",
        "Run `wandb login`, set `WANDB_MODE=offline`, or leave out `save.wandb`.",
    )
    STUDENT_MISSING = (
        "Q701",
        "No such student",
        "Run the phase that writes it, or name another policy.",
    )
    STUDENT_DAMAGED = (
        "Q702",
        "The file is damaged, or not a QPD student",
        "Restore the file, or make the student again.",
    )
    STUDENT_FORMAT = (
        "Q703",
        "The student's file has a format that this version cannot read",
        "Use the version of QPD that wrote it, or make the student again.",
    )
    STUDENT_NOT_FINITE = (
        "Q704",
        "The student's weights contain NaN or infinity",
        "Restore the file, or make the student again.",
    )
    EXPORT_UNSUPPORTED = (
        "Q711",
        "The student cannot be exported to this format",
        "Use another format of `qpd export`.",
    )
    FPGA = (
        "Q712",
        "A core for an FPGA does not fit, or a tool fails on it",
        "Choose another device, or fewer `--multipliers`.",
    )
    TRAINING_DIVERGED = (
        "Q801",
        "Training diverged repeatedly",
        "Lower the learning rate, or limit the gradient, as the message says.",
    )
    DEVICE_RECORD = (
        "Q802",
        "The file is not a measurement by `qpd bench` or `make bench`",
        "Give a JSON file that one of them wrote.",
    )
    REMOTE_DEVICE = (
        "Q803",
        "The device cannot be reached over SSH, or the benchmark fails there",
        "Try `ssh` by hand with the same address.",
    )
    SWEEP_CLUSTER = (
        "Q804",
        "Ray or its cluster cannot run the sweep",
        "Change `--address`, the grid's resources or `-o`, as the message says.",
    )
    COMMAND_LINE = (
        "Q901",
        "The command line is invalid",
        "See `qpd COMMAND --help`.",
    )
    UNFORESEEN = (
        "Q999",
        "An error that QPD did not foresee: a bug, with exit code 70",
        "Report it, with the file that the message names.",
    )

    def __init__(self, code: str, title: str, remedy: str) -> None:
        """Name the parts of the tuple."""
        # Not `value`: of an Enum's member that is the whole tuple.
        self.id = code
        self.title = title
        self.remedy = remedy
