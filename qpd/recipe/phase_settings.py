"""The part of a recipe that phases 1 and 3 read: how to train, and the reward term."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

Precision = Literal["auto", "fp32", "bf16"]


class RecipeSection(BaseModel):
    """What every part of a recipe has in common: strict, closed, immutable, finite numbers."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class TrainingPhase(RecipeSection):
    """What phase 1 (distill) and phase 3 (finetune) have in common; use the subclasses."""

    epochs: int = Field(600, ge=0, description="passes over the memory; 0 = skip the phase")
    samples_per_epoch: int | None = Field(
        None, ge=1, description="transitions per epoch; null = the whole memory once"
    )
    batch_size: int = Field(256, ge=1, le=1 << 20, description="transitions per update")
    lr: float = Field(1e-3, gt=0, le=10, description="learning rate at the start")
    lr_schedule: Literal["constant", "linear", "cosine"] = Field(
        "linear", description="course of the learning rate, down to 0 at the last update"
    )
    optimizer: Literal["adam", "adamw", "rmsprop", "sgd"] = Field("adam", description="optimizer")
    weight_decay: float = Field(0.0, ge=0, le=1, description="weight decay of the optimizer")
    max_grad_norm: float | None = Field(
        None, gt=0, description="gradients are scaled down to this norm; null = never"
    )
    temperature: float | None = Field(
        None, gt=0, description="tau of Eq. 1; null = 0.01 for Q-values, 3 for logits"
    )
    actor_weight: float = Field(0.5, ge=0, le=1, description="lambda of Eq. 2; 1 = actor only")
    loss: Literal["forward_kl", "reverse_kl"] = Field(
        "forward_kl", description="forward = KL(teacher || student), as in the paper"
    )
    precision: Precision = Field(
        "auto", description="arithmetic of training; auto = bf16 where the hardware has it"
    )
    compile: Literal["auto", "on", "off"] = Field(
        "auto", description="torch.compile the training step; auto = on a GPU, where it pays"
    )
    patience: int | None = Field(
        None, ge=1, description="validations without improvement that end the phase; null = none"
    )
    rollbacks: int = Field(
        3,
        ge=0,
        le=100,
        description="times the phase may undo an epoch whose loss spikes or is not finite, or that "
        "kills the student, and go on at half the learning rate; 0 = stop there",
    )

    def temperature_for(self, has_actor_critic: bool) -> float:
        """Tau of Eq. 1: 3 for an actor, 0.01 for Q-values, unless the recipe says otherwise."""
        if self.temperature is not None:
            return self.temperature
        return 3.0 if has_actor_critic else 0.01


class DistillSettings(TrainingPhase):
    """Phase 1: full-precision distillation."""

    recycle_dormant: bool = Field(
        True, description="units that no state activates start anew after each early epoch (ReDo)"
    )


class RewardSettings(RecipeSection):
    """A reward term for phase 3, beyond the paper: PPO on the student's own games."""

    imitation: float = Field(0.3, ge=0, description="weight of Eq. 2 beside PPO's objective")
    rollout: int = Field(
        8192, ge=64, description="transitions the student plays before each epoch trains on them"
    )
    passes: int = Field(2, ge=1, le=100, description="passes over a rollout in an epoch")
    clip: float = Field(0.1, gt=0, lt=1, description="PPO's clip range")
    discount: float = Field(0.99, gt=0, le=1, description="gamma; the teacher's, as a rule")
    gae_lambda: float = Field(0.95, ge=0, le=1, description="lambda of the advantages (GAE)")


class FinetuneSettings(TrainingPhase):
    """Phase 3: distillation with quantized weights and activations in the forward pass."""

    lr: float = Field(1e-4, gt=0, le=10, description="learning rate at the start")
    reward: RewardSettings | None = Field(
        None, description="learn from rewards too, to go past the teacher; null = the paper's phase"
    )
