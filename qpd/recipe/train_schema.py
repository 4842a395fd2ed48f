"""The typed recipe of a training: `qpd train`, with every default in one place.

One language with the recipes of runs (`qpd/recipe/schema.py`): the same files, inheritance,
overrides and errors.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import Field, model_validator

from qpd.recipe.bounds import MAX_SAMPLES, MAX_SEED, MAX_TIMESTEPS
from qpd.recipe.loading import load_typed_recipe, override_line, override_lines
from qpd.recipe.plain_values import Algorithm
from qpd.recipe.section import RecipeSection
from qpd.recipe.value_types import (
    Device,
    EnvArguments,
    Name,
    PhaseLossScale,
    TrainFormat,
    Wrappers,
)


class TrainSettings(RecipeSection):
    """The algorithm, the environment, and how long."""

    algo: Algorithm = Field(description="Stable-Baselines3's algorithm")
    env: str = Field(min_length=1, description="environment id, or module:id")
    timesteps: int | None = Field(
        None, ge=1, le=MAX_TIMESTEPS, description="agent steps; null = the RL Zoo's"
    )
    hyperparameters: EnvArguments = Field(
        default_factory=dict,
        description="arguments of the algorithm's class in place of the RL Zoo's, and the zoo's "
        "n_envs, normalize, noise_type and noise_std, and net_arch, cnn_arch and layer_norm",
    )
    start_from: str | None = Field(
        None,
        min_length=1,
        description="a trained agent whose parameters, entropy coefficient and VecNormalize "
        "statistics come first: a zip, a folder or a hub id; null = random ones",
    )
    checkpoint_every: int | None = Field(
        None,
        ge=1,
        le=MAX_TIMESTEPS,
        description="agent steps between checkpoints, at which episodes are abandoned; null = a "
        "twentieth of the training, at least 10,000 for each environment, of Atari games 6,250",
    )
    keep_checkpoints: bool = Field(
        False,
        description="keep the agent of every checkpoint; false = the newest one's, until the "
        "training is done",
    )
    max_replay_mib: int = Field(
        2048,
        ge=0,
        le=1 << 20,
        description="the largest replay buffer, in MiB, that checkpoints hold; a larger one is "
        "filled anew by the agent's own play after an interruption",
    )
    learner: Literal["sb3", "fast"] | None = Field(
        None,
        description="whose updates: Stable-Baselines3's, or QPD's fast ones of SAC, TD3 and DDPG "
        "on a CPU; null = fast for integer controllers, else sb3",
    )
    products: Literal["float32", "bfloat16"] = Field(
        "float32",
        description="of the fast learner: dtype of the hidden layers' products; bfloat16 is faster "
        "where the processor has units for it",
    )
    compile: Literal["auto", "on", "off"] = Field(
        "auto",
        description="torch.compile the fast learner's updates, but not in the precision.format "
        "of few bits; auto = in trainings of 20,000 agent steps or more; where compiling fails, "
        "training goes on without",
    )


class TrainQuantization(RecipeSection):
    """Quantization-aware training (QuaRL, arXiv 1910.01055), or an integer controller's.

    Integer controllers: Kresse & Lampert, arXiv 2511.07046.
    """

    bits: int | None = Field(
        None, ge=2, le=8, description="of weights and activations; null = learn in float"
    )
    input_bits: int | None = Field(
        None, ge=2, le=8, description="of an integer controller's observations; null: it is none"
    )
    core_bits: int | None = Field(
        None, ge=2, le=8, description="of a controller's weights and activations"
    )
    output_bits: int | None = Field(
        None, ge=2, le=8, description="of a controller's outputs, before the tanh"
    )
    grid: Literal["narrow", "full", "odd"] = Field(
        "narrow",
        description="integers of a controller's weights: 3 bits are -3 to 3 (narrow), -4 to 3 "
        "(full), or the odd ones from -7 to 7 (odd)",
    )
    delay: float | None = Field(
        None,
        ge=0.0,
        allow_inf_nan=False,
        description="share of the agent steps that are learned in float while ranges are watched; "
        "1 or more: never quantized; null = 0.5, for integer controllers 0",
    )
    per: Literal["tensor", "channel", "column"] = Field(
        "column", description="weights that share a range: all, an output's, or an input's"
    )
    scheme: Literal["affine", "dorefa_scaled"] = Field(
        "affine",
        description="levels of weights and activations: the paper's, or those of QPD's integers, "
        "which exports take (per: channel, column being the same, or tensor)",
    )
    gradient: Literal["clipped", "identity"] = Field(
        "clipped",
        description="straight-through: none beyond the range, or (the paper's) everywhere",
    )

    @property
    def controller(self) -> tuple[int, int, int] | None:
        """Bits of input, core and output of an integer controller, or None."""
        given = (self.input_bits, self.core_bits, self.output_bits)
        if given == (None, None, None):
            return None
        first, core, last = (8 if each is None else each for each in given)
        return first, core, last

    @property
    def share_in_float(self) -> float:
        """The share of the agent steps that are learned in float."""
        if self.delay is not None:
            return self.delay
        return 0.5 if self.controller is None else 0.0

    @model_validator(mode="after")
    def _one_way(self) -> TrainQuantization:
        if self.bits is not None and self.controller is not None:
            raise ValueError(
                "bits: not together with input_bits, core_bits and output_bits, which make an "
                "integer controller"
            )
        if self.scheme != "affine" and self.bits is None:
            raise ValueError(
                f"scheme={self.scheme}: needs bits; a controller's levels are its grid"
            )
        if self.bits is None and self.controller is None:
            self._refuse_changed(("per", "gradient", "delay"), "needs bits")
            self._refuse_changed(("grid",), "needs core_bits")
        if self.controller is not None:
            reason = "needs bits; a controller has one scale a matrix, and gradients are clipped"
            self._refuse_changed(("per", "gradient"), reason)
        elif self.bits is not None:
            self._refuse_changed(("grid",), "is of a controller's weights: core_bits")
        return self

    def _refuse_changed(self, keys: Sequence[str], reason: str) -> None:
        for key in keys:
            value = getattr(self, key)
            if value != type(self).model_fields[key].default:
                raise ValueError(f"{key}={value}: {reason}")


Method = Literal[
    "hadam",
    "softplus",
    "normal",
    "kahan_momentum",
    "compound_scale",
    "kahan_gradients",
    "kahan_actor",
]
METHODS: tuple[Method, ...] = get_args(Method)[:-1]  # the paper's; its actor has plain sums
SIX = "six methods"  # in words
ADAM_EPS = 1e-8
# What the paper compares its methods with, and the mixed precision that it leaves out.
Baseline = Literal["coercion", "loss_scaling", "mixed_precision", "placed_mixed_precision"]
BASELINES: tuple[Baseline, ...] = get_args(Baseline)


class TrainPrecision(RecipeSection):
    """Learning in few bits of floating point.

    SAC as Bjorck et al. (arXiv 2102.13565) have it, by `methods` or a `baseline`; other algorithms
    in mixed precision (Micikevicius et al., arXiv 1710.03740).
    """

    format: TrainFormat | None = Field(
        None,
        description="of parameters, activations and gradients, of SAC also of the optimizer's "
        "state: fp16, bf16 or eXmY; null = float32, and on Atari's frames bfloat16 products where "
        "the processor has units for them; fp32 = float32 there, too",
    )
    methods: list[Method] = Field(
        list(METHODS),
        description="of SAC: what keeps few bits from failing; [] = plain SAC in the format; "
        "kahan_actor is none of the paper's six: compensated sums of the actor, too",
    )
    baseline: Baseline | None = Field(
        None,
        description="of SAC: the paper's other ways, in place of methods: coercion of what is not "
        "finite, loss_scaling, mixed_precision (float32 masters and Adam), placed_mixed_precision "
        "(also targets, entropy coefficient and log-probabilities in float32); needs methods=[]",
    )

    eps: float = Field(
        ADAM_EPS,
        gt=0.0,
        le=1.0,
        allow_inf_nan=False,
        description="of SAC: Adam's; 1e-8 is 0 in fp16; compound_scale has its own",
    )
    loss_scale: PhaseLossScale = Field(
        "auto",
        description="factor on the loss, taken off the gradients again: none, dynamic or a number; "
        "auto = dynamic for fp16, none otherwise. Of SAC's baselines that scale, auto = "
        "dynamic with the constants of compound_scale, dynamic = with PyTorch's; "
        "train.learner=fast has PyTorch's alone",
    )
    master_weights: bool = Field(
        True,
        description="of all but Stable-Baselines3's SAC: float32 weights learn and rounded copies "
        "compute; false = the weights themselves are rounded after each update",
    )
    gradient_exponents: int | None = Field(
        None,
        ge=1,
        le=MAX_SAMPLES,
        description="updates between two counts of the gradients' exponents; null = none",
    )

    @property
    def low(self) -> str | None:
        """The format where it is a lower one than float32, or None."""
        return None if self.format == "fp32" else self.format

    def named(self, algo: str = "sac") -> str:
        """Return the arithmetic of an algorithm's learning in words: `fp16, without hadam`."""
        if self.low is None:
            return "fp32"
        if algo != "sac":
            scale = "" if self.loss_scale == "auto" else f", S {self.loss_scale}"
            masters = "" if self.master_weights else ", no masters"
            return f"{self.format}, mixed precision{scale}{masters}"
        eps = "" if self.eps == ADAM_EPS else f", eps {self.eps:g}"
        if self.baseline is not None:
            constants = ", PyTorch's constants" if self.loss_scale == "dynamic" else ""
            return f"{self.format}, {self.baseline.replace('_', ' ')}{constants}{eps}"
        missing = [each for each in METHODS if each not in self.methods]
        if not missing:
            how = SIX
        elif len(missing) == len(METHODS):
            how = "plain"
        elif len(missing) == 1:
            how = f"without {missing[0]}"
        else:
            how = " + ".join(each for each in METHODS if each in self.methods)
        more = " and kahan_actor" if "kahan_actor" in self.methods else ""
        return f"{self.format}, {how}{more}{eps}"

    @model_validator(mode="after")
    def _one_way(self) -> TrainPrecision:
        if self.low is None and (self.loss_scale != "auto" or not self.master_weights):
            raise ValueError("loss_scale and master_weights: need a format lower than fp32")
        if self.low is None and (set(self.methods) != set(METHODS) or self.baseline is not None):
            raise ValueError("methods and baseline: need a format lower than fp32")
        if len(set(self.methods)) < len(self.methods):
            raise ValueError(f"methods: {', '.join(self.methods)} names one of them twice")
        if self.low is None and self.eps != ADAM_EPS:
            raise ValueError("eps: needs a format lower than fp32")
        if "compound_scale" in self.methods and self.eps != ADAM_EPS:
            raise ValueError("eps: compound_scale has its own; leave it out of methods")
        if self.baseline is not None and self.methods:
            raise ValueError(f"baseline={self.baseline} stands in place of methods: set methods=[]")
        return self


class TrainEnvironment(RecipeSection):
    """Hold what is done to each environment, beside what the RL Zoo's hyperparameters say."""

    kwargs: EnvArguments = Field(
        default_factory=dict,
        description="keyword arguments that the environment is made with, beside the zoo's",
    )
    wrappers: Wrappers | None = Field(
        None,
        description="wrappers around each environment, the innermost first: module.Class or "
        "{module.Class: {argument: value}}; null = the zoo's",
    )
    frame_stack: int | None = Field(
        None,
        ge=1,
        le=64,
        description="observations that the policy sees at once (VecFrameStack); null = the zoo's",
    )


class TrainSaving(RecipeSection):
    """Extra output of a training."""

    tensorboard: bool = Field(True, description="write TensorBoard events")


class TrainRecipe(RecipeSection):
    """One training, fully resolved."""

    name: Name = Field(description="name of the training and its run directory")
    base: str | None = Field(
        None, description="recipe to inherit from; null in a resolved recipe", exclude=True
    )
    # Seeds of environments are made from it by adding.
    seed: int = Field(0, ge=0, le=MAX_SEED, description="root of all randomness")
    device: Device = Field("auto", description="auto, cpu, cuda or cuda:N")
    train: TrainSettings = Field(description="the algorithm, the environment, and how long")
    environment: TrainEnvironment = Field(
        default_factory=TrainEnvironment, description="what is done to each environment"
    )
    quantization: TrainQuantization = Field(
        default_factory=TrainQuantization,
        description="learning with quantized weights and activations",
    )
    precision: TrainPrecision = Field(
        default_factory=TrainPrecision, description="learning in low precision"
    )
    save: TrainSaving = Field(default_factory=TrainSaving, description="extra output")

    @property
    def uses_fast_learner(self) -> bool:
        """Tell whether QPD's own updates are made."""
        learner, is_controller = self.train.learner, self.quantization.controller is not None
        is_low = self.precision.low is not None
        return learner == "fast" or (learner is None and is_controller and not is_low)

    @property
    def few_bits_begin(self) -> str:
        """Say when an agent that learns in few bits begins to, for one that was never there."""
        share = self.quantization.share_in_float
        delay = f" after {share:.0%} of the steps (quantization.delay)," if share else ""
        # Of a rollout, which on-policy algorithms learn from; the others learn beside their play.
        on_policy = self.train.algo in ("ppo", "a2c", "trpo")
        least = "n_steps x n_envs" if on_policy else "learning_starts"
        return f"few bits begin{delay} with the first rollout after an update: beyond {least} steps"

    @property
    def learning_device(self) -> str:
        """`device`, where auto is the CPU for the fast learner, which has no other."""
        return "cpu" if self.device == "auto" and self.uses_fast_learner else self.device

    @model_validator(mode="after")
    def _controller_learns_fast(self) -> TrainRecipe:
        is_low = self.precision.low is not None
        if self.quantization.bits is not None and self.uses_fast_learner:
            raise ValueError(
                "train.learner=fast: learns in float, or integer controllers; quantization.bits "
                "needs sb3"
            )
        if self.quantization.controller is not None and not self.uses_fast_learner and not is_low:
            raise ValueError("train.learner: an integer controller is learned by `fast`")
        if self.train.products != "float32" and not self.uses_fast_learner:
            raise ValueError("train.products: needs train.learner=fast")
        if self.train.compile == "on" and not self.uses_fast_learner:
            raise ValueError("train.compile: needs train.learner=fast")
        return self


def load_train_recipe(
    recipe: str | Path | None = None,
    overrides: Sequence[str] = (),
    *,
    algo: str | None = None,
    env: str | None = None,
) -> TrainRecipe:
    """Read a training's recipe from a file, or make one of an algorithm and an environment.

    A key of `overrides` that is none of a recipe's is a hyperparameter: `n_steps=3` stands for
    `train.hyperparameters.n_steps=3`. Raises RecipeError with one line per mistake.
    """
    beneath: dict[str, Any] = {}
    if recipe is None:
        train = {"algo": algo, "env": env}
        beneath = {"name": _name(f"{algo}-{env}"), "train": train}
    lines = [_recipe_line(text) for text in overrides]
    loaded = load_typed_recipe(TrainRecipe, recipe, lines, beneath=beneath)
    bits = loaded.quantization.bits
    if bits is not None and loaded.name == beneath.get("name"):  # beside the float one, not over it
        grid = "" if loaded.quantization.scheme == "affine" else "-integers"
        loaded = loaded.model_copy(update={"name": f"{loaded.name}-{bits}bit{grid}"})
    widths = loaded.quantization.controller
    if widths is not None and loaded.name == beneath.get("name"):
        first, core, last = widths
        grid = loaded.quantization.grid
        name = (
            f"{loaded.name}-core{core}-in{first}-out{last}{'' if grid == 'narrow' else '-' + grid}"
        )
        twin = "-float" if loaded.quantization.share_in_float >= 1 else ""
        loaded = loaded.model_copy(update={"name": name + twin})
    precision = loaded.precision
    if precision.format is not None and loaded.name == beneath.get("name"):
        plain = "" if precision.methods else "-plain"
        loaded = loaded.model_copy(update={"name": f"{loaded.name}-{precision.format}{plain}"})
    return loaded


def override_train_recipe(recipe: TrainRecipe, overrides: Sequence[str]) -> TrainRecipe:
    """Return a resolved recipe with assignments applied. Raises RecipeError."""
    lines = [_recipe_line(text) for text in overrides]
    return load_typed_recipe(TrainRecipe, None, lines, beneath=recipe.model_dump(mode="json"))


def train_override_lines(overrides: Mapping[str, Any] | Sequence[str] | None) -> list[str]:
    """Return overrides as lines; values of a mapping are written as YAML, mappings among them."""
    if not isinstance(overrides, Mapping):
        return override_lines(overrides)
    return [override_line(key, value) for key, value in overrides.items()]


def _name(text: str) -> str:
    """Return a folder's name; `ALE/Pong-v5` and `module:Env-v0` are none."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text)[:100]


def _recipe_line(text: str) -> str:
    key = text.partition("=")[0].strip()
    known = key.split(".")[0] in TrainRecipe.model_fields
    return text if known or not key.isidentifier() else f"train.hyperparameters.{text.lstrip()}"
