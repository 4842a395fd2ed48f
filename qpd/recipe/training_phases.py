"""The sections of phases 1 and 3: how a student trains."""

from typing import Literal

from pydantic import Field

from qpd.recipe.bounds import MAX_EPOCHS, MAX_SAMPLES
from qpd.recipe.section import RecipeSection
from qpd.recipe.value_types import PhaseLossScale, PhasePrecision


class TrainingPhase(RecipeSection):
    """The settings that phase 1 (distill) and phase 3 (finetune) share; use the subclasses."""

    epochs: int = Field(
        600, ge=0, le=MAX_EPOCHS, description="passes over the memory; 0 = skip the phase"
    )
    # 600 epochs are the paper's; so are the memory of 540,000 and the 10% replaced after each.
    samples_per_epoch: int | None = Field(
        None,
        ge=1,
        le=MAX_SAMPLES,
        description="transitions per epoch, at most replay.capacity; null = the whole memory once",
    )
    batch_size: int = Field(256, ge=1, le=1 << 20, description="transitions per update")
    lr: float = Field(1e-3, gt=0, le=10, description="learning rate at the start")
    lr_schedule: Literal["constant", "linear", "cosine"] = Field(
        "linear", description="decay of the learning rate; linear and cosine end at 0"
    )
    optimizer: Literal["adam", "adamw", "rmsprop", "sgd"] = Field("adam", description="optimizer")
    weight_decay: float = Field(0.0, ge=0, le=1, description="weight decay of the optimizer")
    max_grad_norm: float | None = Field(
        None, gt=0, le=1e9, description="norm to which gradients are clipped; null = no clipping"
    )
    temperature: float | None = Field(
        None,
        gt=0,
        le=1000,
        description="tau of Eq. 1; null = 3 for logits, 1 for Gaussian actions; for Q-values as "
        "distill.label_entropy says",
    )
    actor_weight: float | None = Field(
        None,
        ge=0,
        le=1,
        description="lambda of Eq. 2; 1 = Eq. 1 alone; null = 1 without a critic, else 0.5",
    )
    loss: Literal["forward_kl", "reverse_kl"] = Field(
        "forward_kl", description="forward = KL(teacher || student), as in the paper"
    )
    precision: PhasePrecision = Field(
        "auto",
        description="arithmetic of training: fp32; bf16, PyTorch's autocast; fp16 or eXmY, "
        "simulated; auto = bf16 if the hardware supports it, else fp32",
    )
    loss_scale: PhaseLossScale = Field(
        "auto",
        description="factor on the loss, taken off the gradients again: none, dynamic or a number; "
        "auto = dynamic for fp16, none otherwise",
    )
    master_weights: bool = Field(
        True,
        description="under fp16 and eXmY: float32 weights learn and rounded copies compute; "
        "false = the weights themselves are rounded after each update",
    )
    gradient_exponents: int | None = Field(
        None,
        ge=1,
        le=MAX_SAMPLES,
        description="updates between two counts of the gradients' exponents; null = none",
    )
    compile: Literal["auto", "on", "off"] = Field(
        "auto",
        description="torch.compile the training step; auto = where it pays: for observations that "
        "are vectors in phases of 20,000 updates or more on a CPU; off = neither that nor, on a "
        "GPU, a CUDA graph",
    )
    patience: int | None = Field(
        None,
        ge=1,
        le=MAX_EPOCHS,
        description="validations without improvement after which the phase stops; null = never",
    )
    rollbacks: int = Field(
        3,
        ge=0,
        le=100,
        description="times that the phase may undo an epoch whose loss spikes or is not finite, or "
        "that kills the student, and continue at half the learning rate; 0 = stop with an error",
    )

    def actor_weight_for(self, has_critic: bool) -> float:
        """Return lambda of Eq. 2: the recipe's, else 0.5, or 1 where the teacher has no critic.

        The QPD paper trains students of DQN, whose Q-values are what Eq. 1 compares, by it alone.
        """
        if self.actor_weight is not None:
            return self.actor_weight
        return 0.5 if has_critic else 1.0

    def samples_in_epoch(self, capacity: int) -> int:
        """Return the transitions that an epoch draws from a memory of `capacity`."""
        return min(self.samples_per_epoch or capacity, capacity)


class DistillSettings(TrainingPhase):
    """Phase 1: full-precision distillation."""

    # As large as this only because dormant units are recycled.
    lr: float = Field(4e-3, gt=0, le=10, description="learning rate at the start")
    label_entropy: float = Field(
        0.8,
        gt=0,
        lt=1,
        description="for Q-values: tau is where the labels' entropy is this share of ln(number "
        "of actions), unless temperature is given",
    )
    recycle_dormant: bool = Field(
        True, description="reinitialise units that no state activates, after early epochs (ReDo)"
    )


class RewardSettings(RecipeSection):
    """A reward term for phase 3, beyond the paper: PPO on the student's own games."""

    imitation: float = Field(
        0.3, ge=0, le=1000, description="weight of Eq. 2 beside PPO's objective"
    )
    rollout: int = Field(
        8192,
        ge=64,
        le=MAX_SAMPLES,
        description="transitions that the student plays before each epoch",
    )
    passes: int = Field(2, ge=1, le=100, description="passes over the rollout in each epoch")
    clip: float = Field(0.1, gt=0, lt=1, description="PPO's clip range")
    discount: float = Field(0.99, gt=0, le=1, description="gamma; usually the teacher's")
    gae_lambda: float = Field(0.95, ge=0, le=1, description="lambda of the advantages (GAE)")


class FinetuneSettings(TrainingPhase):
    """Phase 3: distillation with quantized weights and activations in the forward pass."""

    lr: float = Field(1e-4, gt=0, le=10, description="learning rate at the start")
    recycle_dormant: bool = Field(
        False, description="as in phase 1; for quantized training from random weights"
    )
    reward: RewardSettings | None = Field(
        None, description="also learn from rewards, to surpass the teacher; null = as in the paper"
    )

    def samples_in_epoch(self, capacity: int) -> int:
        """Return the transitions of an epoch; with a reward term those of its rollout, each pass.

        They are drawn from a memory of `capacity` else.
        """
        if self.reward is not None:
            return self.reward.rollout * self.reward.passes
        return super().samples_in_epoch(capacity)
