"""The stable code of every error that a user can cause: what a script may branch on.

A code keeps its meaning for good; one that is given up is never used again. `UserError` carries
one to the command line, which prints `error: TEXT [Q101]`.
"""

from __future__ import annotations

from enum import Enum


class ErrorCode(Enum):
    """One kind of error: `id` as printed, `title`, and `remedy`, what to do about it."""

    RECIPE_NOT_FOUND = (
        "Q101",
        "There is no such recipe, base recipe or grid",
        "Give a path, or a name that `qpd recipes` lists.",
    )
    RECIPE_NOT_YAML = (
        "Q102",
        "The recipe cannot be read as plain YAML",
        "Mend the line named: UTF-8 text, spaces instead of tabs, each key once, no anchors.",
    )
    RECIPE_UNKNOWN_KEY = (
        "Q103",
        "The recipe has a key that does not exist",
        "Use the key proposed; all are in the [reference](recipe-keys.md).",
    )
    RECIPE_WRONG_TYPE = (
        "Q104",
        "A value of the recipe has the wrong type",
        "Write a number, text, list or mapping as the line says.",
    )
    RECIPE_WRONG_VALUE = (
        "Q105",
        "A value of the recipe is out of range, or none of the choices",
        "Take a value that the line allows.",
    )
    RECIPE_MISSING_KEY = (
        "Q106",
        "The recipe lacks a key that has no default",
        "Add the key, or inherit it with `base`.",
    )
    RECIPE_CONTRADICTION = (
        "Q107",
        "Keys of the recipe, or recipes that inherit from each other, contradict each other",
        "Change one of the keys that the line names.",
    )
    RECIPE_OVERRIDE = (
        "Q108",
        "A `--set` is no `key=value`, or changes what this command cannot change",
        "Write `--set distill.lr=1e-3`; settle earlier phases in a new run.",
    )
    STUDENT_MISFIT = (
        "Q109",
        "The student does not fit the environment's observations",
        "Take a size of three convolutions (`XXS` to `XXL`) for frames, `mlp-N` for vectors.",
    )
    GRID_WRONG = (
        "Q110",
        "The grid of a sweep gives no cell, or cells that cannot be told apart",
        "Change `axes`, `include` or `exclude` as the line says.",
    )
    RUN_NOT_A_RUN = (
        "Q201",
        "The path is no run directory",
        "Give the folder that `qpd run` or `qpd distill` made: it holds manifest.json.",
    )
    RUN_OTHER_RECIPE = (
        "Q202",
        "The run directory was begun with another recipe or teacher",
        "Choose another `-o`, or remove the folder.",
    )
    RUN_IN_USE = (
        "Q203",
        "Another process is working in the folder",
        "Wait until it ends, or choose another `-o`.",
    )
    RUN_DAMAGED = (
        "Q204",
        "A file of the run directory is missing, damaged or was changed by hand",
        "Restore the file named, or begin a new run.",
    )
    RUN_FORMAT = (
        "Q205",
        "The run directory was written in a format that this version does not read",
        "Use the version of QPD that wrote it (`manifest.json` names it), or begin a new run.",
    )
    RUN_UNWRITABLE = (
        "Q206",
        "The run directory cannot be made or written",
        "Choose an `-o` on a disk that can be written.",
    )
    RUN_PHASE_MISSING = (
        "Q207",
        "An earlier phase of the run has not finished",
        "Run the command that the line names first.",
    )
    RUN_CHECKPOINT = (
        "Q208",
        "The checkpoint is damaged or does not fit",
        "Put a copy of the file back, or do as the line says; phase 1, once done, is not lost.",
    )
    NOTHING_MEASURED = (
        "Q209",
        "The runs do not hold what is to be shown",
        "Run what the line names, for example `qpd evaluate RUN`, or name other runs.",
    )
    TEACHER_NOT_FOUND = (
        "Q301",
        "There is no such agent",
        "Give an SB3 zip, an RL Zoo folder, a hub id or `embedded`.",
    )
    TEACHER_DAMAGED = (
        "Q302",
        "The file is no agent saved by Stable-Baselines3, or is damaged",
        "Save or download the zip again.",
    )
    TEACHER_UNSUPPORTED = (
        "Q303",
        "The agent's algorithm, network or spaces are not supported",
        "Take a PPO, A2C, DQN or QR-DQN agent with CnnPolicy or MlpPolicy and discrete actions.",
    )
    TEACHER_WRONG_ENVIRONMENT = (
        "Q304",
        "The agent and the environment differ in actions or observations",
        "Name the environment that the agent was trained on (`teacher.env`, `--env`).",
    )
    TEACHER_NOT_FINITE = (
        "Q305",
        "The agent's weights hold NaN or infinity",
        "Its training diverged: take an earlier checkpoint.",
    )
    TEACHER_UNCLEAR = (
        "Q306",
        "Nothing tells the agent's environment, algorithm or number of actions",
        "Set `teacher.env` and `teacher.algo`, or give `--env`.",
    )
    TEACHER_SETTINGS = (
        "Q307",
        "A file beside the agent (args.yml, config.yml, vecnormalize.pkl) is missing or damaged",
        "Copy the file from where the agent was trained.",
    )
    TEACHER_TRAINING = (
        "Q308",
        "This agent cannot be trained, or not be trained on",
        "Take an algorithm, an environment and a folder as the line says.",
    )
    HUB_UNREACHABLE = (
        "Q401",
        "The Hugging Face hub cannot be reached",
        "Go online, or do what the line says by hand.",
    )
    HUB_REFUSED = (
        "Q402",
        "The Hugging Face hub refuses: no token, or one without the right to write",
        "`hf auth login` with a token that may write, or `--dry-run`.",
    )
    ENVIRONMENT_UNKNOWN = (
        "Q501",
        "There is no such environment",
        "Take one of the ids proposed.",
    )
    ENVIRONMENT_UNSUPPORTED = (
        "Q502",
        "The environment is not supported, or not for this command",
        "Take an Atari game, or an environment with flat observations and discrete actions.",
    )
    DEVICE_MISSING = (
        "Q601",
        "The device is not there",
        "Take `--device cpu` or `auto`; `qpd doctor` lists what there is.",
    )
    PACKAGE_MISSING = (
        "Q602",
        "A package or program that is optional is not installed",
        "Install what the line names.",
    )
    FILE_SYSTEM = (
        "Q603",
        "A file or folder cannot be read or written",
        "Mend the path that the line names: its folder, its rights, the space on its disk.",
    )
    OUTPUT_TAKEN = (
        "Q604",
        "The place of the output holds other files",
        "Choose another `-o`.",
    )
    LOGGING_SERVICE = (
        "Q605",
        "Weights & Biases cannot be used",
        "`wandb login`, `WANDB_MODE=offline`, or leave `save.wandb` out.",
    )
    STUDENT_MISSING = (
        "Q701",
        "There is no such student",
        "Run the phase that writes it, or name another policy.",
    )
    STUDENT_DAMAGED = (
        "Q702",
        "The file is no student of QPD, or is damaged",
        "Restore the file, or make the student again.",
    )
    STUDENT_FORMAT = (
        "Q703",
        "The student was written in a format that this version does not read",
        "Use the version of QPD that wrote it, or make the student again.",
    )
    STUDENT_NOT_FINITE = (
        "Q704",
        "The student's weights hold NaN or infinity",
        "Restore the file, or make the student again.",
    )
    EXPORT_UNSUPPORTED = (
        "Q711",
        "The student cannot be exported to this format",
        "Take another format of `qpd export`.",
    )
    TRAINING_DIVERGED = (
        "Q801",
        "Training diverged, again and again",
        "Lower the learning rate, or limit the gradient, as the line says.",
    )
    DEVICE_RECORD = (
        "Q802",
        "The file is no measurement of `qpd bench` or `make bench`",
        "Give the JSON file that one of them wrote.",
    )
    REMOTE_DEVICE = (
        "Q803",
        "The device cannot be reached by SSH, or the benchmark fails there",
        "Try `ssh` with the same address by hand.",
    )
    SWEEP_CLUSTER = (
        "Q804",
        "Ray or its cluster cannot run the sweep",
        "Change `--address`, the resources of the grid, or `-o`, as the line says.",
    )
    COMMAND_LINE = (
        "Q901",
        "The command line is wrong",
        "See `qpd COMMAND --help`.",
    )

    def __init__(self, code: str, title: str, remedy: str) -> None:
        """Name the three parts."""
        self.id = code
        self.title = title
        self.remedy = remedy
