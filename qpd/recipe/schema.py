"""The typed recipe: one experiment, described completely, with every default in one place.

`qpd.recipe.loading.load_recipe` reads one from YAML. The models here refuse unknown keys, numbers
written as text and values out of range; they are immutable. One "step" is one agent step (four
emulator frames on Atari) everywhere.
"""

from typing import Literal, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from qpd.errors.codes import ErrorCode
from qpd.errors.user_error import UserError
from qpd.recipe.bounds import (
    MAX_EPISODES,
    MAX_EPOCHS,
    MAX_FRAMES,
    MAX_SAMPLES,
    MAX_SEED,
    MAX_SHARPNESS,
)
from qpd.recipe.plain_values import Algorithm
from qpd.recipe.section import RecipeSection
from qpd.recipe.training_phases import DistillSettings, FinetuneSettings
from qpd.recipe.value_types import (
    ActivationName,
    ConvChannels,
    Device,
    EnvArguments,
    HiddenWidths,
    Name,
    Project,
    Size,
    Wrappers,
)

EMBEDDED_TEACHER = "embedded"
MAX_PARALLEL_GAMES = 64  # of an evaluation or a validation, unless the recipe says otherwise

Acting = Literal["auto", "sample", "epsilon", "greedy"]
Precision = Literal["auto", "fp32", "bf16"]


class RecipeError(UserError, ValueError):
    """Every mistake found in a recipe, one line each, in `lines`."""

    code = ErrorCode.RECIPE_WRONG_VALUE


class TeacherSettings(RecipeSection):
    """The agent to imitate."""

    source: str = Field(
        EMBEDDED_TEACHER,
        min_length=1,
        description="an SB3 zip, a zoo folder, a hub id (sb3/ppo-CartPole-v1), or 'embedded'",
    )
    algo: Algorithm | None = Field(
        None, description="the teacher's algorithm; null = read it from the source"
    )
    env: str | None = Field(
        None, min_length=1, description="environment id; null = read it from the source"
    )
    vecnormalize: str | None = Field(
        None,
        min_length=1,
        description="VecNormalize's statistics (vecnormalize.pkl); null = beside the agent",
    )


class EnvironmentSettings(RecipeSection):
    """The vector environment that teacher and student act in."""

    num_envs: int = Field(64, ge=1, le=4096, description="games played in parallel")
    num_threads: int = Field(
        0,
        ge=0,
        le=1024,
        description="emulators, or processes that step slow environments, that may run at once; "
        "0 = no limit",
    )
    max_frames: int | None = Field(
        None,
        ge=4,
        le=MAX_FRAMES,
        description="emulator frames after which a game is truncated; null = 65,700 for Breakout, "
        "108,000 for other Atari games, elsewhere the environment's own limit",
    )
    kwargs: EnvArguments = Field(
        default_factory=dict,
        description="keyword arguments that the environment is made with, beside the agent's own",
    )
    wrappers: Wrappers | None = Field(
        None,
        description="wrappers around each environment, the innermost first: module.Class or "
        "{module.Class: {argument: value}}; null = what the agent's files name",
    )
    frame_stack: int | None = Field(
        None,
        ge=1,
        le=64,
        description="observations seen at once (VecFrameStack); null = as the agent's "
        "files say, else 1; Atari's own four are not counted",
    )


class CollectionSettings(RecipeSection):
    """The play that fills the memory: who acts, and how."""

    acting: Acting = Field(
        "auto", description="auto = sample for policy-gradient teachers, epsilon for Q-values"
    )
    epsilon: float = Field(0.01, ge=0, le=1, description="share of random actions under epsilon")
    student_fraction: float = Field(
        0.5, ge=0, le=1, description="share of environments in which the student plays (DAgger)"
    )
    sharpness: float = Field(
        1.0,
        gt=0,
        le=MAX_SHARPNESS,
        description="factor on the teacher's logits where it samples its own play; the student's "
        "play has student.sharpness folded in, and the labels neither",
    )
    precision: Precision = Field(
        "auto",
        description="the teacher's compute dtype; auto = bf16 for logits if the hardware supports "
        "it, fp32 for Q-values",
    )


class ReplaySettings(RecipeSection):
    """The rolling memory of transitions."""

    capacity: int = Field(540_000, ge=1, le=MAX_SAMPLES, description="transitions held")
    refresh_fraction: float = Field(
        0.1, ge=0, le=1, description="share replaced by new play after each epoch, oldest first"
    )

    @property
    def refresh_count(self) -> int:
        """The transitions replaced after each epoch."""
        return round(self.refresh_fraction * self.capacity)


class StudentSettings(RecipeSection):
    """The student's architecture: either a named size, or custom widths."""

    size: Size | None = Field(
        None, description="XXS XS S M L XL XXL, or mlp-N, mlp-N-N ...; null = custom widths"
    )
    conv_channels: ConvChannels | None = Field(
        None,
        description="output channels of a custom student's convolutions: the grid's three, and "
        "up to two more (3x3, stride 2)",
    )
    hidden: HiddenWidths | None = Field(
        None, description="widths of the hidden linear layers of a custom student"
    )
    activation: ActivationName = Field(
        "relu",
        description="what follows the hidden layers of students of vectors: all but relu cost a "
        "table of a kilobyte; images take relu alone",
    )
    sharpness: float = Field(
        1.0,
        gt=0,
        le=100,
        description="the student's logits are this multiple of the teacher's, once folded into "
        "the head when phase 1 ends; 1 = the student samples as randomly as its teacher",
    )

    @model_validator(mode="after")
    def _exactly_one_form(self) -> Self:
        custom = self.conv_channels is not None or self.hidden is not None
        # Either of the two: loading drops an inherited size where widths are given, and the
        # reverse.
        if (self.size is not None) == custom:
            raise PydanticCustomError(
                "student_form", "set either size, or hidden (with conv_channels for frames)"
            )
        if self.conv_channels is not None and self.hidden is None:
            raise PydanticCustomError(
                "student_form", "conv_channels needs hidden beside it, for example hidden: [128]"
            )
        return self


class QuantizeSettings(RecipeSection):
    """Phase 2, and the quantizers that phase 3 trains through."""

    weight_bits: int = Field(8, ge=2, le=8, description="bits per weight")
    activation_bits: int = Field(8, ge=2, le=8, description="bits per activation of hidden layers")
    first_layer_bits: int | None = Field(
        None, ge=2, le=8, description="weight bits of the first layer; null = weight_bits"
    )
    last_layer_bits: int | None = Field(
        None, ge=2, le=8, description="weight bits of the last layer; null = weight_bits"
    )
    input_bits: int = Field(
        8, ge=2, le=8, description="bits of each feature of a vector; images are bytes, and have 8"
    )
    action_bits: int = Field(
        8, ge=2, le=8, description="bits of a continuous action's code; no effect on other actions"
    )
    scheme: Literal["dorefa_scaled", "narrow", "dorefa"] = Field(
        "dorefa_scaled",
        description="dorefa_scaled = odd integers; narrow = the same with a zero, -1, 0 and 1 at 2 "
        "bits, for vectors; dorefa = Eq. 5 as written, which drops each layer's scale",
    )
    per_channel: bool = Field(True, description="one weight scale per output channel")
    equalization: float = Field(
        0.75,
        ge=0,
        le=1,
        description="how strongly channels' activation ranges are evened out before quantizing; "
        "0 = not at all; no effect under dorefa, nor where hidden layers are not ReLU",
    )
    calibration_samples: int = Field(
        4096, ge=1, le=100_000, description="observations from which activation ranges are set"
    )
    calibration_percentile: float = Field(
        99.99, ge=50, le=100, description="percentile of activations that counts as their maximum"
    )
    learned_ranges: bool = Field(
        True, description="also train activation ranges and weight scales in phase 3"
    )


class EvaluationSettings(RecipeSection):
    """Validation while training, and the returns reported at the end."""

    episodes: int = Field(200, ge=1, le=MAX_EPISODES, description="full games per reported return")
    acting: Acting = Field(
        "auto",
        description="auto = as in the RL Zoo: on Atari sample (epsilon for Q-values), else greedy",
    )
    epsilon: float = Field(0.01, ge=0, le=1, description="share of random actions under epsilon")
    num_envs: int | None = Field(
        None, ge=1, le=4096, description="games in parallel; null = min(episodes, 64)"
    )
    validation_episodes: int = Field(
        50, ge=1, le=MAX_EPISODES, description="full games per validation"
    )
    select: Literal["divergence", "return"] = Field(
        "divergence",
        description="the best epoch: divergence = the least from the teacher on the states of the "
        "validation games of both that are compared, unless the return has collapsed; return = the "
        "best, as in the paper",
    )
    validate_every: int = Field(1, ge=1, le=MAX_EPOCHS, description="epochs between validations")

    @property
    def games_in_parallel(self) -> int:
        """Games that an evaluation plays side by side; game i of the first is environment i's."""
        return self.num_envs or min(self.episodes, MAX_PARALLEL_GAMES)


class SaveSettings(RecipeSection):
    """Extra output of a run, beyond students, metrics and checkpoints."""

    tensorboard: bool = Field(True, description="write TensorBoard events")
    wandb: Project | None = Field(
        None, description="Weights & Biases project to which metrics are logged too; null = none"
    )
    keep_replay: bool = Field(False, description="keep the memory after the run has finished")


class Recipe(RecipeSection):
    """One experiment, fully resolved."""

    name: Name = Field(
        description="name of the experiment and its run directory; default: the file's stem"
    )
    base: str | None = Field(
        # Excluded from what is written: a resolved recipe stands alone.
        None,
        description="recipe to inherit from; null in a resolved recipe",
        exclude=True,
    )
    seed: int = Field(0, ge=0, le=MAX_SEED, description="root of all randomness")
    device: Device = Field("auto", description="auto, cpu, cuda or cuda:N")
    teacher: TeacherSettings = Field(
        default_factory=TeacherSettings, description="the agent to imitate"
    )
    environment: EnvironmentSettings = Field(
        default_factory=EnvironmentSettings, description="the vector environment"
    )
    collection: CollectionSettings = Field(
        default_factory=CollectionSettings, description="how the memory is filled"
    )
    replay: ReplaySettings = Field(default_factory=ReplaySettings, description="the memory")
    student: StudentSettings = Field(description="the student's architecture")
    distill: DistillSettings = Field(default_factory=DistillSettings, description="phase 1")
    quantize: QuantizeSettings = Field(default_factory=QuantizeSettings, description="phase 2")
    finetune: FinetuneSettings = Field(default_factory=FinetuneSettings, description="phase 3")
    evaluation: EvaluationSettings = Field(
        default_factory=EvaluationSettings, description="validation and final returns"
    )
    save: SaveSettings = Field(default_factory=SaveSettings, description="extra output")

    @model_validator(mode="after")
    def _memory_holds_every_stream(self) -> Self:
        # Frames are stored per environment stream, and each stream needs room for one.
        if self.replay.capacity < self.environment.num_envs:
            raise PydanticCustomError(
                "cross_field",
                "{capacity} must be at least environment.num_envs, which is {num_envs}",
                {
                    "capacity": self.replay.capacity,
                    "num_envs": self.environment.num_envs,
                    "key": "replay.capacity",
                },
            )
        return self

    @model_validator(mode="after")
    def _formats_are_simulated(self) -> Self:
        for name, phase in (("distill", self.distill), ("finetune", self.finetune)):
            key = None
            if phase.precision in ("auto", "fp32", "bf16"):
                if not phase.master_weights:
                    key, rule = "master_weights", "false needs precision fp16 or eXmY"
                elif phase.compile == "on" and (
                    phase.loss_scale not in ("auto", "none") or phase.gradient_exponents is not None
                ):
                    key, rule = "compile", "on needs loss_scale auto or none, no gradient_exponents"
            elif phase.compile == "on":
                key, rule = "compile", "on needs precision auto, fp32 or bf16"
            if key is not None:
                raise PydanticCustomError(
                    "cross_field", "{rule}", {"rule": rule, "key": f"{name}.{key}"}
                )
        return self

    @model_validator(mode="after")
    def _rollouts_fit(self) -> Self:
        reward, num_envs = self.finetune.reward, self.environment.num_envs
        # A stream's last step has no successor to bootstrap from, so one step each would teach
        # nothing.
        if reward is None or 2 * num_envs <= reward.rollout <= self.replay.capacity:
            return self
        raise PydanticCustomError(
            "cross_field",
            "{rollout} must be between twice environment.num_envs ({num_envs}) and replay.capacity "
            "({capacity})",
            {
                "rollout": reward.rollout,
                "num_envs": num_envs,
                "capacity": self.replay.capacity,
                "key": "finetune.reward.rollout",
            },
        )
