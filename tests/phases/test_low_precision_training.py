"""`qpd train sac --precision`, for real and briefly: its numbers, its failures, interruptions."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import gymnasium
import numpy as np
import pytest
import torch
from stable_baselines3 import SAC

import qpd
from qpd.commands.train import _has_vanished
from qpd.numerics.float_format import FloatFormat
from qpd.recipe.train_schema import METHODS, Baseline, Method, TrainPrecision, load_train_recipe
from qpd.teachers import load_teacher
from qpd.teachers.archive.stored_controller import StoredController
from qpd.teachers.training.low_precision_adam import LowPrecisionAdam
from qpd.teachers.training.low_precision_sac import use_low_precision
from tests.command_line import call
from tests.phases.small_trainings import (
    Interrupts,
    assert_same_training,
    low_precision_training,
    metric_rows,
)

torch.set_num_threads(1)
pytestmark = pytest.mark.filterwarnings("default")  # the zoo's own dependencies warn


@pytest.mark.parametrize("form", ["fp16", "e6m7"])
def test_all_that_learns_is_on_the_grid_and_sb3_reads_it(form: str, tmp_path: Path) -> None:
    run = low_precision_training(tmp_path / "run", form)
    assert run.agent_file is not None
    model = SAC.load(run.agent_file, device="cpu")
    grid = FloatFormat.parse(form)
    states = model.critic.optimizer.state.values()
    kept = [each[key] for each in states for key in ("lost", "target")]
    for each in [*model.policy.parameters(), model.log_ent_coef, *kept]:
        assert each is not None and each.isfinite().all() and torch.equal(grid.round(each), each)
    assert float(metric_rows(run)[-1]["train/skipped_updates"]) >= 0.0
    assert qpd.evaluate(run, episodes=1).returns.size == 1


def test_the_scale_told_is_of_the_losses_that_have_one() -> None:
    # The entropy coefficient's has none.
    model = SAC("MlpPolicy", "Pendulum-v1", learning_starts=10, buffer_size=100, device="cpu")
    use_low_precision(model, TrainPrecision(format="fp16", methods=[], baseline="mixed_precision"))
    model.learn(12)
    # 1e4, halved where gradients overflow.
    assert model.logger.name_to_value["train/loss_scale"] > 1000.0


def test_stable_baselines3_goes_on_with_steps_of_the_learning_rate(tmp_path: Path) -> None:
    run = low_precision_training(tmp_path / "run")
    assert run.agent_file is not None
    model = SAC.load(run.agent_file, env=gymnasium.make("Pendulum-v1"), device="cpu")
    model.learning_starts = 10_000
    model.learn(64, reset_num_timesteps=False)  # its memory is not in the zip
    before = [each.detach().clone() for each in model.critic.parameters()]
    model.train(1, 32)
    moved = zip(before, model.critic.parameters(), strict=True)
    steps = [float((old - new.detach()).abs().max()) for old, new in moved]
    assert 0.0 < max(steps) < 5.0 * model.critic.optimizer.param_groups[0]["lr"]


def test_a_scale_that_doubles_changes_no_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qpd.teachers.training.low_precision_adam.GROWS_AFTER", 3)
    settings = TrainPrecision(format="fp16", methods=["hadam", "compound_scale"])
    ours, theirs = (torch.ones(50, requires_grad=True) for _ in range(2))
    adam = torch.optim.Adam([theirs], 1e-3, eps=settings.eps)
    low = LowPrecisionAdam([ours], 1e-3, FloatFormat.parse("fp32"), settings, compensates=False)
    rng = torch.Generator().manual_seed(0)
    for _ in range(12):
        gradient = torch.randn(50, generator=rng)
        theirs.grad, ours.grad = gradient, gradient * low.loss_scale
        adam.step()
        low.step()
    assert low.loss_scale == 1e4 * 2**3
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)


@pytest.mark.parametrize("controller", [{}, {"quantization.core_bits": 2}])
def test_an_interrupted_training_ends_in_the_same_numbers(
    controller: dict[str, Any], tmp_path: Path
) -> None:
    whole = low_precision_training(tmp_path / "whole", **controller)
    with pytest.raises(KeyboardInterrupt):
        low_precision_training(tmp_path / "parts", progress=Interrupts(240), **controller)
    parts = low_precision_training(tmp_path / "parts", **controller)
    assert len(parts.phase.resumed_at) == 1
    assert_same_training(whole, parts)


def test_an_integer_controller_learns_in_half_precision(tmp_path: Path) -> None:
    more = {"quantization.core_bits": 2, "train.timesteps": 400, "train_freq": 1}
    run = low_precision_training(tmp_path / "run", **more)
    assert run.agent_file is not None
    policy = SAC.load(run.agent_file, device="cpu").policy
    for each in policy.parameters():
        assert torch.equal(each.half().float(), each)
    stored = load_teacher(run.path).quantization
    # Scales began to be learned after 300 updates, and are no numbers of fp16.
    assert isinstance(stored, StoredController) and stored.calls == 300
    scales = torch.tensor(stored.scales)
    assert (scales > 0).all() and not torch.equal(scales.half().float(), scales)
    games = [
        qpd.evaluate(run, policy=kind, episodes=4, seed=5).returns for kind in ("teacher", "qat")
    ]
    assert games[1] == pytest.approx(games[0], rel=0.05)


def test_plain_half_precision_fails_at_once_and_says_so(tmp_path: Path) -> None:
    with pytest.raises(qpd.UserError, match="learning failed after"):
        low_precision_training(tmp_path / "run", **{"precision.methods": []})


class Patient(gymnasium.ActionWrapper[Any, Any, Any]):
    """Takes an action that is no number for 0."""

    def action(self, action: Any) -> Any:
        return np.nan_to_num(action)


@pytest.mark.parametrize(
    ("wrappers", "message"),
    [
        # Pendulum shows NaN from then on, which is not its own fault.
        ([], "the agent's actions are no longer finite"),
        ([f"{__name__}.Patient"], r"policy\.actor\.\S+ is no longer finite"),
    ],
)
def test_numbers_that_are_no_longer_finite_are_noticed_where_sb3_does_not_look(
    wrappers: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As torch.compile leaves it for the rest of a process.
    monkeypatch.setattr(torch.distributions.Distribution, "_validate_args", False)
    with pytest.raises(qpd.UserError, match=message):
        low_precision_training(
            tmp_path / "run", **{"precision.methods": [], "environment.wrappers": wrappers}
        )


@pytest.mark.parametrize("left_out", ["softplus", "normal", "kahan_momentum", "kahan_gradients"])
def test_a_method_can_be_left_out(left_out: str, tmp_path: Path) -> None:
    methods = load_train_recipe(None, algo="sac", env="x").precision.methods
    rest = [each for each in methods if each != left_out]
    short = {"precision.methods": rest, "train.timesteps": 80}
    assert low_precision_training(tmp_path / "run", **short).phase.state == "done"


@pytest.mark.parametrize("baseline", ["coercion", "mixed_precision", "placed_mixed_precision"])
def test_the_papers_baselines_learn_and_can_be_interrupted(baseline: str, tmp_path: Path) -> None:
    its = {"precision.methods": [], "precision.baseline": baseline}
    whole = low_precision_training(tmp_path / "whole", **its)
    with pytest.raises(KeyboardInterrupt):
        low_precision_training(tmp_path / "parts", progress=Interrupts(240), **its)
    assert_same_training(whole, low_precision_training(tmp_path / "parts", **its))
    assert whole.agent_file is not None
    model = SAC.load(whole.agent_file, device="cpu")
    half = FloatFormat.parse("fp16")
    for network in (model.actor, model.critic, model.critic_target):
        assert all(torch.equal(half.round(each), each) for each in network.parameters())
    state = model.critic.optimizer.state[next(model.critic.parameters())]
    assert ("master" in state) == (baseline != "coercion")


def test_loss_scaling_alone_ends_in_nan(tmp_path: Path) -> None:
    # Adam's eps of 1e-8 is 0 in fp16, and 0 / 0 NaN where a gradient was always 0.
    its = {"precision.methods": [], "precision.baseline": "loss_scaling"}
    with pytest.raises(qpd.UserError, match="learning failed after"):
        low_precision_training(tmp_path / "run", **its)


@pytest.mark.parametrize(
    ("precision", "scale", "skipped", "has_vanished"),
    # 32 of fp16's smallest normal number, 2^-14, are 0.002; of e3m10's, 1/4, they are 8.
    [
        ("fp16, six methods", 9e-4, 23, True),
        ("fp16, six methods", 0.01, 20, False),
        ("fp16, plain", 1.0, 0, False),
        ("e3m10, coercion", 1.0, 0, False),
        ("e3m10, six methods", 1.2, 13, False),
    ],
)
def test_a_scale_that_fell_too_far_is_told(
    precision: str, scale: float, skipped: int, has_vanished: bool
) -> None:
    told = {"algo": "sac", "precision": precision, "loss_scale": scale, "skipped_updates": skipped}
    assert _has_vanished(told) == has_vanished
    assert not _has_vanished(told | {"loss_scale": None})


def test_with_an_eps_of_its_own_adam_learns_in_half_precision(tmp_path: Path) -> None:
    run = low_precision_training(
        tmp_path / "run", **{"precision.methods": [], "precision.eps": 1e-4}
    )
    assert run.phase.state == "done" and run.agent_file is not None
    whole = SAC.load(run.agent_file, device="cpu")
    assert whole.critic.optimizer.param_groups[0]["eps"] == 1e-4


def test_constants_of_pytorch_and_sums_of_the_actor(tmp_path: Path) -> None:
    its: dict[str, Any] = {"precision.methods": [], "precision.baseline": "mixed_precision"}
    run = low_precision_training(tmp_path / "amp", **its, **{"precision.loss_scale": "dynamic"})
    assert run.agent_file is not None
    group = SAC.load(run.agent_file, device="cpu").critic.optimizer.param_groups[0]
    # 65,536 is infinite in fp16: the first update is skipped at the least.
    assert group["gamma"] == 65_536.0 / 2 ** group["skipped"] and group["skipped"] >= 1
    run = low_precision_training(
        tmp_path / "actor", **{"precision.methods": [*METHODS, "kahan_actor"]}
    )
    assert run.agent_file is not None
    lost = [each["lost"] for each in SAC.load(run.agent_file).actor.optimizer.state.values()]
    assert lost and any(each.count_nonzero() for each in lost)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_target_follows_weights_that_have_outgrown_its_scale(dtype: torch.dtype) -> None:
    # 1e4 times 14 is above 65,504, and so is half of it: C becomes 2,500.
    weight = torch.nn.Parameter(torch.ones(3, dtype=dtype))
    target = torch.nn.Parameter(torch.ones(3, dtype=dtype), requires_grad=False)
    settings = TrainPrecision(format="fp16", methods=["kahan_momentum"])
    half = FloatFormat.parse("fp16")
    optimizer = LowPrecisionAdam([weight], 1e-3, half, settings, compensates=False)
    optimizer.move_target([target], 0.25)
    assert optimizer.param_groups[0]["target_scale"] == 1e4 and target.tolist() == [1.0] * 3
    with torch.no_grad():
        weight[0] = 14.0
    optimizer.move_target([target], 0.25)
    assert optimizer.param_groups[0]["target_scale"] == 2500.0
    assert target.tolist() == pytest.approx([4.25, 1.0, 1.0], rel=1e-3)  # a quarter of the way
    for _ in range(60):
        optimizer.move_target([target], 0.25)
    assert target.tolist() == pytest.approx([14.0, 1.0, 1.0], rel=1e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(("methods", "gradient"), [([*METHODS], 4.0), (["compound_scale"], 0.015)])
def test_the_scale_does_not_double_where_moments_would_overflow(
    methods: list[Method], gradient: float, dtype: torch.dtype
) -> None:
    # Times 1e4 the first moment is nearly 40,000, and the second without hadam 22,500, which four
    # times as large is beyond 65,504.
    weight = torch.nn.Parameter(torch.ones(1, dtype=dtype))
    settings = TrainPrecision(format="fp16", methods=methods)
    half = FloatFormat.parse("fp16")
    optimizer = LowPrecisionAdam([weight], 1e-4, half, settings, compensates=False)
    for _ in range(10_002):
        weight.grad = torch.full_like(weight, gradient * optimizer.loss_scale)
        optimizer.step()
    state = optimizer.state[weight]
    assert optimizer.loss_scale == 1e4 and optimizer.skipped == 0
    assert all(state[key].isfinite().all() for key in ("exp_avg", "exp_avg_sq"))


def test_masters_keep_steps_that_half_precision_loses() -> None:
    # fp16's step at 1 is 2^-10: of 2^-12 a step four are one, and without masters none.
    moved = {}
    half = FloatFormat.parse("fp16")
    for baseline in (None, "mixed_precision"):
        weight = torch.nn.Parameter(torch.ones(1))
        settings = TrainPrecision(
            format="fp16", methods=[], baseline=cast("Baseline | None", baseline)
        )
        optimizer = LowPrecisionAdam([weight], 2.0**-12, half, settings, compensates=False)
        for _ in range(4):
            optimizer.zero_grad()
            (-weight * optimizer.loss_scale).sum().backward()
            optimizer.step()
        moved[baseline] = weight.item()
    assert moved == {None: 1.0, "mixed_precision": 1.0 + 2.0**-10}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            ("sac", "Pendulum-v1", "--precision", "fp16", "--set", "precision.baseline=coercion"),
            "set methods=",
        ),
        (
            ("sac", "Pendulum-v1", "--precision", "fp16", "--bits", "4"),
            "integer controllers alone",
        ),
        (("sac", "Pendulum-v1", "--precision", "fp17"), "--precision fp17: must be"),
        (("sac", "Pendulum-v1", "--plain"), "needs --precision"),
        (("sac", "Pendulum-v1", "--precision", "fp32", "--plain"), "has no methods"),
        (
            ("sac", "Pendulum-v1", "--precision", "fp16", "--set", "precision.format=e5m7"),
            "give one of them",
        ),
        (("sac", "Pendulum-v1", "--set", "precision.methods=[hadam]"), "lower than fp32"),
        (
            (
                "sac",
                "Pendulum-v1",
                "--precision",
                "fp16",
                "--set",
                "precision.methods=[hadam,hadam]",
            ),
            "names one of them twice",
        ),
        (("sac", "Pendulum-v1", "--set", "precision.eps=1e-4"), "lower than fp32"),
        (
            ("sac", "Pendulum-v1", "--precision", "fp16", "--set", "precision.eps=1e-4"),
            "compound_scale has its own",
        ),
        (
            ("sac", "Pendulum-v1", "--precision", "fp16", "--set", "precision.loss_scale=dynamic"),
            "needs a baseline that scales",
        ),
        (
            ("sac", "Pendulum-v1", "--precision", "fp16", "--set", "precision.loss_scale=128"),
            "auto or dynamic",
        ),
        (("sac", "Pendulum-v1", "--precision", "fp16", "--set", "use_sde=true"), "use_sde=false"),
    ],
)
def test_what_does_not_fit_is_one_line(
    arguments: tuple[str, ...], expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = call(capsys, "train", *arguments, "-o", tmp_path / "new", "--device", "cpu")
    lines = [line for line in err.splitlines() if line.startswith("error: ")]
    assert code == 2 and len(lines) == 1 and expected in lines[0] and not out, err
    assert not (tmp_path / "new").exists()
