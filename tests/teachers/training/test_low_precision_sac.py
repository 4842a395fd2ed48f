"""SAC in low precision: float16 tensors against the simulation, and what an update stores."""

from __future__ import annotations

import math
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from stable_baselines3 import SAC

from qpd.numerics.float_format import FloatFormat
from qpd.quantization.controller_layer import WARM_UP
from qpd.recipe.train_schema import METHODS, TrainPrecision
from qpd.teachers.archive.errors import TeacherError
from qpd.teachers.training.controller import AgentController
from qpd.teachers.training.low_precision_sac import LowPrecisionSAC, use_low_precision

WITHOUT_COMPILER = ("numerics.float_format", "teachers.training.low_precision_adam")


def learner(
    width: int = 32,
    methods: tuple[str, ...] = METHODS,
    baseline: Any = None,
    form: str = "fp16",
) -> LowPrecisionSAC:
    """A learner in simulated arithmetic with a buffer of 100 transitions."""
    model = SAC(
        "MlpPolicy", gymnasium.make("Pendulum-v1"), batch_size=32, learning_starts=100,
        policy_kwargs={"net_arch": [width, width]}, seed=0, device="cpu",
    )  # fmt: skip
    settings = TrainPrecision(format=form, methods=list(methods), baseline=baseline)
    use_low_precision(model, settings)
    assert isinstance(model, LowPrecisionSAC)
    return model.learn(100)


def stored_in_16_bits(methods: tuple[str, ...] = METHODS) -> LowPrecisionSAC:
    """The same learner with float16 tensors."""
    its = learner(methods=methods)
    its.policy.half()
    assert its.log_ent_coef is not None
    its.log_ent_coef.data = its.log_ent_coef.data.half()
    return its


def update(model: LowPrecisionSAC) -> None:
    np.random.seed(0)
    torch.manual_seed(0)
    model._update(32, moves_target=True)


@pytest.mark.parametrize("is_compiled", [True, False])
@pytest.mark.parametrize("methods", [METHODS, ("compound_scale", "hadam")])
def test_float16_tensors_hold_the_numbers_of_the_simulation(
    methods: tuple[str, ...], is_compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulated, stored = learner(methods=methods), stored_in_16_bits(methods)
    if not is_compiled:
        for module in WITHOUT_COMPILER:
            monkeypatch.setattr(f"qpd.{module}.kernels", lambda: None)
    for model in (simulated, stored):
        for _ in range(3):
            update(model)
    assert {each.dtype for each in stored.policy.parameters()} == {torch.float16}
    wanted = dict(simulated.policy.state_dict())
    for name, its in stored.policy.state_dict().items():
        assert torch.equal(its.float(), wanted[name]), name
    for one, other in zip(simulated.critic.parameters(), stored.critic.parameters(), strict=True):
        states = stored.critic.optimizer.state[other], simulated.critic.optimizer.state[one]
        assert states[0].keys() == states[1].keys() > {"exp_avg", "exp_avg_sq"}
        for key in states[0].keys() - {"step"}:
            assert states[0][key].dtype == torch.float16
            assert torch.equal(states[0][key].float(), states[1][key]), key


@pytest.mark.parametrize(
    ("methods", "baseline"),
    [(METHODS, None), ((), None), (("kahan_gradients",), None), ((), "coercion")]
    + [((), "mixed_precision"), ((), "placed_mixed_precision")],
)
def test_without_a_compiler_the_numbers_are_the_same(
    methods: tuple[str, ...], baseline: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for kernels in (None, lambda: None):
        if kernels is not None:
            for module in WITHOUT_COMPILER:
                monkeypatch.setattr(f"qpd.{module}.kernels", kernels)
        model = learner(methods=methods, baseline=baseline)
        for _ in range(5):
            update(model)
        found.append({name: each.clone() for name, each in model.policy.state_dict().items()})
    for name, each in found[0].items():
        torch.testing.assert_close(each, found[1][name], rtol=0, atol=0, equal_nan=True)


class Exact(FloatFormat):
    """Float64 as it is."""

    largest, smallest_normal = 2.0**1023, 2.0**-1022  # type: ignore[assignment]

    def round(self, x: torch.Tensor) -> torch.Tensor:
        return x

    def round_(self, x: torch.Tensor) -> torch.Tensor:
        return x


def exact_learner(
    methods: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, baseline: Any = None
) -> LowPrecisionSAC:
    """A learner in float64; its optimizers have float64's form, too."""
    monkeypatch.setattr(FloatFormat, "parse", lambda text, **_: Exact(8, 23))
    model = learner(methods=methods, baseline=baseline)
    model.policy.double()
    assert model.log_ent_coef is not None
    model.log_ent_coef.data = model.log_ent_coef.data.double()
    return model


def test_in_float64_a_hundred_updates_by_all_six_are_plain_sacs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The paper's Statement 1. Adam's eps beside the loss times gamma is gamma's, 1e-8 for both.
    ends = []
    for methods in (METHODS, ()):
        model = exact_learner(methods, monkeypatch)
        for step in range(100):
            np.random.seed(step)
            torch.manual_seed(step)
            model._update(32, moves_target=True)
        ends.append({**model.policy.state_dict(), "alpha": model.log_ent_coef})
    before = exact_learner((), monkeypatch).policy.state_dict()
    assert ends[0].keys() == ends[1].keys()
    for name, its in ends[0].items():
        assert its is not None and its.dtype == torch.float64
        torch.testing.assert_close(its.data, ends[1][name].data, rtol=0, atol=1e-9, msg=name)  # type: ignore[union-attr]
        if name in before:
            assert (its - before[name]).abs().max() > 1e-4, name


def test_a_controllers_scales_skip_what_its_weights_skip() -> None:
    model: Any = SAC(
        "MlpPolicy", gymnasium.make("Pendulum-v1"), batch_size=32, learning_starts=100,
        policy_kwargs={"net_arch": [16, 16]}, seed=0, device="cpu",
    )  # fmt: skip
    controller = AgentController(model, (8, 3, 8), "narrow")
    use_low_precision(model, TrainPrecision(format="fp16"), controller)
    model.learn(100)
    for each in controller.quantizers.learned:
        each.calls = WARM_UP
    controller.begin(0)
    for moves in (True, False):
        if not moves:  # one weight's gradient overflows, and no scale's
            model.actor.log_std.weight.register_hook(lambda gradient: gradient * math.inf)
        skipped, scales = model.actor.optimizer.skipped, controller.quantizers.scales.clone()
        weight = model.actor.mu.weight.detach().clone()
        update(model)
        assert (model.actor.optimizer.skipped == skipped) == moves
        assert torch.equal(scales, controller.quantizers.scales) != moves
        assert torch.equal(weight, model.actor.mu.weight) != moves


@pytest.mark.parametrize(("network", "wanted"), [("critic", 16), ("actor", 8)])
def test_bytes_a_parameter(network: str, wanted: int) -> None:
    # Weight, gradient and both moments; the critic's also Kahan's sum, the target that plays, and
    # the target's own sum with its compensation. SB3's float32: 20 and 16.
    model = stored_in_16_bits()
    update(model)
    its: Any = getattr(model, network)
    kept = [each for one in its.parameters() for each in (one.detach(), one.grad)]
    if network == "critic":
        kept += list(model.critic_target.parameters())
    for state in its.optimizer.state.values():
        kept += [each for each in state.values() if each.dim()]
    count = sum(each.numel() for each in its.parameters())
    held = sum(each.element_size() * each.numel() for each in kept)
    assert held == wanted * count


def test_eps_is_a_number_of_the_format() -> None:
    # e4m10 ends at 255.9, so that the scale falls from 1e4, and with it eps below half of the
    # smallest number, 1.5e-5: 0 / 0 where a gradient was always 0.
    model = learner(form="e4m10")
    for _ in range(20):
        update(model)
    assert model.actor.optimizer.loss_scale < 700  # type: ignore[union-attr]
    for name, each in model.policy.named_parameters():
        assert each.isfinite().all(), name


class Images(gymnasium.Env[Any, Any]):
    """Shows noise in colour."""

    observation_space = gymnasium.spaces.Box(0, 255, (3, 36, 36), np.uint8)
    action_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self.observation_space.sample(), float(action[0]), False, False, {}


def learner_of_images() -> SAC:
    model = SAC(
        "CnnPolicy", Images(), batch_size=8, learning_starts=20, buffer_size=100, seed=0,
        policy_kwargs={"net_arch": [16, 16]}, device="cpu",
    )  # fmt: skip
    use_low_precision(model, TrainPrecision(format="fp16", methods=list(METHODS)))
    return model


def test_float16_images_give_the_numbers_of_the_simulation() -> None:
    models = []
    for dtype in (torch.float32, torch.float16):
        Images.observation_space.seed(0)
        model: Any = learner_of_images().learn(20)
        model.policy.to(dtype)
        model.log_ent_coef.data = model.log_ent_coef.data.to(dtype)
        for _ in range(3):
            np.random.seed(0)
            torch.manual_seed(0)
            model._update(8, moves_target=True)
        models.append(dict(model.policy.state_dict()))
    for name, its in models[1].items():
        assert its.dtype == torch.float16 and torch.equal(its.float(), models[0][name]), name


def test_images_are_learned_from_in_half_precision() -> None:
    model = learner_of_images()
    before = {name: each.clone() for name, each in model.policy.state_dict().items()}
    model.learn(60)
    for name, each in model.policy.state_dict().items():
        assert torch.equal(each.half().float(), each) and each.isfinite().all()
        assert not torch.equal(each, before[name]), name  # convolutions of actor, critic, target


def test_a_shared_image_network_is_refused_in_one_line() -> None:
    shared = {"net_arch": [16, 16], "share_features_extractor": True}
    model = SAC("CnnPolicy", Images(), policy_kwargs=shared, buffer_size=10, device="cpu")
    with pytest.raises(TeacherError, match="share_features_extractor=False"):
        use_low_precision(model, TrainPrecision(format="fp16"))
