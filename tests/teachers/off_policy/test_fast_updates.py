"""The fast learner makes Stable-Baselines3's updates: same weights and batch, same result."""

import copy
import io
import math
import pickle
import warnings

import numpy as np
import pytest
import torch

sb3 = pytest.importorskip("stable_baselines3")

from qpd.numerics.gradient_exponents import LOWEST  # noqa: E402
from qpd.quantization.controller_layer import WARM_UP  # noqa: E402
from qpd.recipe.train_schema import TrainPrecision  # noqa: E402
from qpd.teachers.archive.errors import TeacherError  # noqa: E402
from qpd.teachers.off_policy.squashed_gaussian import squashed_sample  # noqa: E402
from qpd.teachers.training.controller import AgentController  # noqa: E402
from qpd.teachers.training.fast_learner import use_fast_learner  # noqa: E402
from qpd.teachers.training.gradient_counts import GradientCounts  # noqa: E402
from qpd.teachers.training.mixed_precision import use_mixed_precision  # noqa: E402


def _model(name: str, **options):
    model = getattr(sb3, name)(
        "MlpPolicy",
        "Pendulum-v1",
        seed=3,
        device="cpu",
        buffer_size=64,
        batch_size=32,
        learning_starts=64,
        policy_kwargs={"net_arch": [24, 16]},
        **options,
    )
    model.learn(64)
    return model


def _after_updates(model, count: int):
    torch.manual_seed(5)
    np.random.seed(5)
    model.set_logger(sb3.common.logger.Logger(None, []))
    for _ in range(count):
        model.train(1, batch_size=32)
    return model


@pytest.mark.parametrize("name", ["SAC", "TD3", "DDPG"])
def test_updates_equal_those_of_stable_baselines3(name):
    # Four updates: TD3 moves its actor at every second one. Batches and noise are drawn in the same
    # order. Adam divides by the gradient's own size, so a gradient near 0 that is rounded otherwise
    # moves by up to 1e-3 of a learning rate of 1e-3: 1e-6.
    theirs, ours = _model(name, learning_rate=1e-3), _model(name, learning_rate=1e-3)
    before = copy.deepcopy(theirs.policy.state_dict())
    use_fast_learner(ours)
    _after_updates(theirs, 4)
    _after_updates(ours, 4)
    expected, found = theirs.policy.state_dict(), ours.policy.state_dict()
    assert expected.keys() == found.keys()
    for key, value in expected.items():
        torch.testing.assert_close(found[key], value, rtol=0, atol=3e-6, msg=key)
        assert not torch.equal(value, before[key]), key
    if name == "SAC":
        torch.testing.assert_close(ours.log_ent_coef.data, theirs.log_ent_coef.data)
    for network in ("actor", "critic"):
        states = [
            getattr(model, network).optimizer.state_dict()["state"] for model in (theirs, ours)
        ]
        for index, moments in states[0].items():
            assert float(states[1][index]["step"]) == float(moments["step"])
            torch.testing.assert_close(
                states[1][index]["exp_avg"], moments["exp_avg"], rtol=1e-3, atol=1e-6
            )


@pytest.mark.parametrize("name", ["SAC", pytest.param("TD3", marks=pytest.mark.slow)])
def test_compiled_updates_are_the_same_but_for_rounding(name):
    plain, compiled = _model(name, learning_rate=1e-3), _model(name, learning_rate=1e-3)
    use_fast_learner(plain)
    use_fast_learner(compiled, compiles=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # one says that it could not be compiled
        for model in (plain, compiled):
            _after_updates(model, 4)
    expected, found = plain.policy.state_dict(), compiled.policy.state_dict()
    for key, value in expected.items():
        torch.testing.assert_close(found[key], value, rtol=0, atol=3e-6, msg=key)
    assert any(not torch.equal(found[key], value) for key, value in expected.items())


def _controller(model, calls: int) -> AgentController:
    controller = AgentController(model, (8, 3, 8), "narrow")
    controller.quantizers.scales.copy_(torch.tensor([2.0, 1.5, 1.0, 3.0]))
    for each in controller.quantizers.learned:
        each.calls = calls
    controller.begin(0)
    return controller


@pytest.mark.parametrize("name", ["SAC", pytest.param("TD3", marks=pytest.mark.slow)])
def test_compiled_controllers_learn_as_others_do(name):
    # Their scales are averaged over two batches more, which none can compile, and learned then.
    plain, compiled = _model(name, learning_rate=1e-3), _model(name, learning_rate=1e-3)
    controllers = [_controller(model, WARM_UP - 2) for model in (plain, compiled)]
    use_fast_learner(plain, controller=controllers[0])
    use_fast_learner(compiled, controller=controllers[1], compiles=True)
    averaged = None
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # one says that it could not be compiled
        for model, controller in zip((plain, compiled), controllers, strict=True):
            _after_updates(model, 2 if name == "SAC" else 4)  # TD3's actor learns from every second
            assert controller.quantizers.calls == WARM_UP
            averaged = controller.quantizers.scales.clone()
            _after_updates(model, 4)
    expected, found = plain.policy.state_dict(), compiled.policy.state_dict()
    for key, value in expected.items():
        torch.testing.assert_close(found[key], value, rtol=0, atol=3e-6, msg=key)
    assert any(not torch.equal(found[key], value) for key, value in expected.items())
    scales = [each.quantizers.scales for each in controllers]
    torch.testing.assert_close(scales[1], scales[0], rtol=0, atol=3e-6)
    assert ((scales[1] - averaged).abs() > 1e-4).all()
    states = torch.randn(1, 3)
    with torch.no_grad():
        acts = [model.fast_actor.act(states) for model in (plain, compiled)]
    torch.testing.assert_close(acts[1], acts[0], rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["TD3", "DDPG"])
@pytest.mark.parametrize(
    "settings",
    [{"format": "fp16"}, {"format": "e5m7", "loss_scale": 128}]
    + [{"format": "e5m5", "loss_scale": 128, "master_weights": False}],
    ids=lambda each: each["format"],
)
def test_few_bits_are_learned_in_as_by_stable_baselines3(name, settings):
    precision = TrainPrecision(**settings)
    theirs, ours, exact = (_model(name, learning_rate=1e-3) for _ in range(3))
    use_mixed_precision(theirs, precision)
    use_fast_learner(ours, precision=precision)
    use_fast_learner(exact)
    for model in (theirs, ours, exact):
        _after_updates(model, 4)
    states = [dict(model.policy.state_dict()) for model in (theirs, ours, exact)]
    for key, value in states[0].items():
        torch.testing.assert_close(states[1][key], value, rtol=0, atol=1e-6, msg=key)
    assert any((states[2][key] - value).abs().max() > 1e-4 for key, value in states[0].items())
    kept = [model.critic.optimizer.param_groups[0] for model in (theirs, ours)]
    for key in ("loss_scale", "good_updates", "skipped_updates"):
        assert kept[0][key] == kept[1][key], key
    if settings["format"] == "fp16":  # from 65,536 the scale falls to where gradients fit
        assert kept[1]["skipped_updates"] > 0 and ours.fast_arithmetic.scale.scale < 2.0**16


def test_gradients_of_a_skipped_update_are_counted_without_the_loss_scale():
    model = _model("TD3", learning_rate=1e-3)
    use_fast_learner(model, precision=TrainPrecision(format="fp16"))
    counts, arithmetic = GradientCounts(model, 1), model.fast_arithmetic
    assert arithmetic.scale.scale == 2.0**16
    gradients = torch.full((len(model.fast_critics._flat.values),), 2.0**13)
    gradients[0] = 1e9  # beyond fp16
    model.fast_critics.step(gradients)
    assert arithmetic.scale.skipped == 1
    _, weights, _ = counts.take()
    assert weights.not_finite == 1 and weights.counts[-3 - LOWEST] == len(gradients) - 1


def test_sac_learns_in_mixed_precision():
    settings = {"format": "fp16", "methods": [], "baseline": "placed_mixed_precision"}
    narrow, exact = _model("SAC", learning_rate=1e-3), _model("SAC", learning_rate=1e-3)
    use_fast_learner(narrow, precision=TrainPrecision(**settings, loss_scale=128))
    use_fast_learner(exact)
    for model in (narrow, exact):
        _after_updates(model, 4)
    found, wanted = narrow.policy.state_dict(), exact.policy.state_dict()
    for key, value in wanted.items():
        # Adam moves by up to a rate an update, whichever way a gradient near 0 is rounded.
        torch.testing.assert_close(found[key], value, rtol=0, atol=8e-3, msg=key)
        assert (found[key] - value).abs().mean() < 1e-4, key
    assert any(not torch.equal(found[key], value) for key, value in wanted.items())
    with pytest.raises(TeacherError, match="placed_mixed_precision"):
        use_fast_learner(_model("SAC"), precision=TrainPrecision(format="fp16"))


@pytest.mark.parametrize("name", ["SAC", "TD3", "DDPG"])
def test_saved_agents_load_in_stable_baselines3_and_go_on(name):
    ours = _model(name)
    use_fast_learner(ours)
    _after_updates(ours, 4)
    ours.train(0)  # as a caller may ask
    pickle.dumps(ours.policy)
    file = io.BytesIO()
    ours.save(file)
    file.seek(0)
    loaded = getattr(sb3, name).load(file)
    states = np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32)
    np.testing.assert_array_equal(
        loaded.predict(states, deterministic=True)[0], ours.predict(states, deterministic=True)[0]
    )
    # The moments are in the file, too: a fast learner that loads it makes the same next update.
    again = _model(name)
    use_fast_learner(again)
    file.seek(0)
    again.set_parameters(file)
    again._n_updates = ours._n_updates
    if name == "SAC":
        again.log_ent_coef.data = ours.log_ent_coef.data.clone()
    _after_updates(ours, 2)
    _after_updates(again, 2)
    for key, value in ours.policy.state_dict().items():
        assert torch.equal(again.policy.state_dict()[key], value), key


def test_bfloat16_products_stay_near_float32():
    # Two updates at 1e-3 move a parameter by at most about 2e-3; half as far apart is another path.
    exact, narrow = _model("SAC"), _model("SAC")
    use_fast_learner(exact)
    use_fast_learner(narrow, torch.bfloat16)
    _after_updates(exact, 2)
    _after_updates(narrow, 2)
    a, b = (
        torch.cat([p.flatten() for p in m.critic.parameters()]).detach() for m in (exact, narrow)
    )
    assert (a - b).abs().mean() < 2e-4
    assert b.dtype == torch.float32


def test_log_probability_is_that_of_the_density():
    # P(a <= t) = integral of pi: the density over (-1, 1) must integrate to 1, and the mean of
    # log pi under samples to its integral. One dimension, mean 0.3, deviation 0.8.
    a = torch.linspace(-1 + 1e-6, 1 - 1e-6, 400_001, dtype=torch.float64)
    mean, deviation = 0.3, 0.8
    noise = (torch.atanh(a) - mean) / deviation
    outputs = torch.tensor([[mean, math.log(deviation)]], dtype=torch.float64).expand(len(a), -1)
    log_probs = squashed_sample(outputs, noise.unsqueeze(1)).log_probs
    # 1e-6 inside the logarithm takes 1e-6 / (1 - a^2) off the density; near the ends that is all.
    assert torch.trapezoid(log_probs.exp(), a) == pytest.approx(1.0, abs=2e-4)


def test_gradients_of_the_sample_equal_automatic_ones():
    torch.manual_seed(0)
    outputs = torch.randn(50, 6, dtype=torch.float64) * 2
    outputs[:5, 3:] = 3.0  # beyond the clamp: no gradient
    noise = torch.randn(50, 3, dtype=torch.float64)
    weights = torch.randn(50, 3, dtype=torch.float64)
    leaf = outputs.clone().requires_grad_()
    sample = squashed_sample(leaf, noise)
    ((sample.actions * weights).sum() + 0.2 * sample.log_probs.sum()).backward()
    found = squashed_sample(outputs, noise).gradient(weights, 0.2)
    torch.testing.assert_close(found, leaf.grad)
    assert found[:5, 3:].abs().max() == 0


def test_temperature_falls_where_entropy_is_too_high():
    # d/d log(alpha) of -log(alpha) * (mean log pi + target): with mean log pi = -3 and target -1
    # it is 4; Adam's first step is the learning rate, downwards.
    from qpd.teachers.training.fast_learner import _Temperature

    model = _model("SAC", learning_rate=1e-2)
    use_fast_learner(model)
    before = float(model.log_ent_coef.detach())
    loss = _Temperature(model).learn(-3.0)
    assert loss == pytest.approx(4.0 * before)
    assert float(model.log_ent_coef.detach()) == pytest.approx(before - 1e-2, rel=1e-4)


def test_what_cannot_learn_fast_is_refused():
    model = sb3.SAC("MlpPolicy", "Pendulum-v1", use_sde=True, device="cpu")
    with pytest.raises(TeacherError, match="gSDE"):
        use_fast_learner(model)
    with pytest.raises(TeacherError, match="PPO does not"):
        use_fast_learner(sb3.PPO("MlpPolicy", "Pendulum-v1", device="cpu"))
    model = _model("TD3")
    with pytest.raises(TeacherError, match="controllers and precision.format do not go together"):
        use_fast_learner(model, controller=_controller(model, 0), precision=TrainPrecision())
