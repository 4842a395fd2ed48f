"""An integer controller that learns: the quantizers of a SAC's, TD3's or DDPG's actor."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from stable_baselines3.common.base_class import BaseAlgorithm
from torch import Tensor, nn
from torch.optim.adam import adam

from qpd.errors.codes import ErrorCode
from qpd.files.atomic import write_json
from qpd.files.json_input import read_json
from qpd.machine.compiled_graph import StagedFunctions
from qpd.quantization.controller_layer import (
    WARM_UP,
    ControllerBits,
    ControllerQuantizers,
    attach_controller,
)
from qpd.quantization.integer_grid import WeightGrid
from qpd.teachers.archive.errors import TeacherError
from qpd.teachers.archive.stored_controller import StoredController
from qpd.teachers.archive.stored_quantization import (
    QUANTIZATION_FILE,
    check_shapes,
    read_quantization,
)
from qpd.teachers.off_policy.flat_parameters import FlatAdam, FlatParameters
from qpd.teachers.training.acting_layers import acting_layers

_MOMENTS_FILE = "scale_moments.json"


class AgentController:
    """The quantizers of a model's actor and of its target, and Adam's moments of the scales."""

    def __init__(
        self, model: BaseAlgorithm, widths: tuple[int, int, int], grid: WeightGrid
    ) -> None:
        """Attach them to the actor's layers, which learn in float until `begin`."""
        networks = acting_layers(model.policy)
        self._weights: list[Any] = [layer.weight for layer in networks[0]]
        if not all(isinstance(layer, nn.Linear) for layer in networks[0]):
            raise TeacherError(
                "quantization: integer controllers see vectors; use bits for images",
                ErrorCode.TEACHER_TRAINING,
            )
        self.begun_at: int | None = None
        self.quantizers = ControllerQuantizers(
            ControllerBits(*widths), grid, [1.0] * (len(networks[0]) + 1)
        )
        for each in networks:
            attach_controller(each, self.quantizers)
        self._moments = [torch.zeros_like(self.quantizers.scales) for _ in range(2)]
        self._step = torch.zeros(())

    @property
    def are_ready(self) -> bool:
        """Tell whether it can begin: always."""
        return True

    def begin(self, timesteps: int) -> None:
        """Quantize from now on."""
        self.begun_at, self.quantizers.is_active = timesteps, True

    @property
    def named_scales(self) -> dict[str, float]:
        """The scales of the input, behind each hidden layer and of the output, by name."""
        first, *hidden, last = self.quantizers.scales.tolist()
        names = [f"scale_hidden{place}" for place in range(1, len(hidden) + 1)]
        return dict(
            zip(["scale_input", *names, "scale_output"], [first, *hidden, last], strict=True)
        )

    def learn(self, rate: float, loss_scale: float = 1.0) -> None:
        """Take Adam's step of the scales along their gradients, of the loss times `loss_scale`."""
        gradients = [each.value.grad for each in self.quantizers.learned]
        found = [each for each in gradients if each is not None]
        if len(found) == len(gradients):
            self.step(torch.stack(found) / loss_scale, rate)

    def step(self, gradients: Tensor, rate: float) -> None:
        """Take Adam's step of the scales along gradients `[layers + 1]`, once they are learned.

        None is taken where a gradient is not finite.
        """
        if self.quantizers.calls < WARM_UP or not gradients.isfinite().all():
            return
        adam(
            [self.quantizers.scales], [gradients], [self._moments[0]], [self._moments[1]], [],
            [self._step], fused=True, amsgrad=False, beta1=0.9, beta2=0.999, lr=rate,
            weight_decay=0.0, eps=1e-8, maximize=False,
        )  # fmt: skip
        for each in self.quantizers.learned:
            each.clamp()

    def forget_gradients(self) -> None:
        """Forget the gradients of the scales."""
        for each in self.quantizers.learned:
            each.value.grad = None

    def save(self, folder: Path) -> None:
        """Write `quantization.json` into a folder."""
        quantizers = self.quantizers
        StoredController(
            quantizers.bits,
            quantizers.grid,
            self.begun_at,
            tuple(quantizers.scales.tolist()),
            quantizers.calls,
        ).write_to(folder / QUANTIZATION_FILE)

    def save_moments(self, folder: Path) -> None:
        """Write what only resuming needs."""
        moments = [each.tolist() for each in self._moments]
        write_json(folder / _MOMENTS_FILE, {"step": float(self._step), "moments": moments})

    def restore(self, folder: Path) -> None:
        """Go on with what a checkpoint holds. Raises TeacherError where it does not fit."""
        stored = read_quantization(folder / QUANTIZATION_FILE)
        if not isinstance(stored, StoredController):
            raise TeacherError(f"{folder / QUANTIZATION_FILE}: is no integer controller's")
        check_shapes(stored, self._weights, None)
        with torch.no_grad():
            self.quantizers.scales.copy_(torch.tensor(stored.scales))
        for each in self.quantizers.learned:
            each.calls = stored.calls
        self.begun_at, self.quantizers.is_active = stored.begun_at, stored.begun_at is not None
        content = read_json(folder / _MOMENTS_FILE)
        self._step.fill_(content["step"])
        for mine, its in zip(self._moments, content["moments"], strict=True):
            mine.copy_(torch.tensor(its))


class ControllerActor:
    """The actor of a controller for the fast learner: the policy's own modules, by autograd."""

    def __init__(
        self,
        network: Any,
        flat: FlatParameters,
        adam_: FlatAdam | None,
        control: AgentController,
        compiles: bool,
    ) -> None:
        """Take SB3's actor, whose parameters are `flat`; a target has no optimizer."""
        self._network, self._flat, self._adam, self._control = network, flat, adam_, control
        self._compiles = compiles
        self._acting = StagedFunctions(lambda states: [self._outputs(states)])

    @property
    def scales(self) -> dict[str, float]:
        """The learned scales by name."""
        return self._control.named_scales

    @property
    def stage(self) -> int | None:
        """Tell whether it is quantized; None while its scales are averaged, which counts batches.

        None, too, where nothing is compiled: passes are kept for autograd then.
        """
        quantizers = self._control.quantizers
        if not self._compiles or (quantizers.is_active and quantizers.calls < WARM_UP):
            return None
        return int(quantizers.is_active)

    def outputs(self, *states: Tensor) -> tuple[list[Tensor], Sequence[Tensor]]:
        """Map each batch of states to outputs; only the first is watched, and learned from."""
        if self.stage is not None:  # one pass, and another for gradients
            found = self._outputs(torch.cat(states))
            return list(found.split([len(each) for each in states])), [states[0]]
        with torch.set_grad_enabled(self._adam is not None):
            learned = self._outputs(states[0])
        return [learned.detach(), *(self._outputs(each) for each in states[1:])], [learned]

    def act(self, states: Tensor) -> Tensor:
        """Map states to outputs."""
        (act,) = self._acting.at(self.stage)
        (found,) = act(states)
        return found

    def gradients(self, gradient: Tensor, kept: Sequence[Tensor]) -> Tensor:
        """Return the gradients of parameters, and of scales that are learned, by autograd."""
        (outputs,) = kept
        if not outputs.requires_grad:  # states, whose pass is made again
            with torch.enable_grad():
                outputs = self._outputs(outputs)
        scales = [each.value for each in self._control.quantizers.learned]
        found = torch.autograd.grad(
            outputs, [*self._flat.parameters, *scales], gradient, allow_unused=True
        )
        return torch.cat([each.flatten() for each in found if each is not None])

    def step(self, gradients: Tensor) -> None:
        """Move the parameters and the scales."""
        assert self._adam is not None
        count = len(self._flat.values)
        self._adam.step(gradients[:count])
        if len(gradients) > count:
            self._control.step(gradients[count:], self._adam.rate)

    def _outputs(self, states: Tensor) -> Tensor:
        network = self._network
        if hasattr(network, "latent_pi"):
            latent = network.latent_pi(states)
            return torch.cat([network.mu(latent), network.log_std(latent)], 1)
        found: Tensor = network.mu[:-1](states)  # its last module is the tanh
        return found
