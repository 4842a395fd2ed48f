"""Action variance and entropy of trainings: by hand, and of real ones, briefly trained."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import qpd
from qpd.actions import Discrete
from qpd.analysis.paper.quarl import QuarlEvidence, judge
from qpd.analysis.suites.exploration import exploration_figure, paired_with_float, spread
from qpd.environments.policy import FunctionPolicy
from tests.command_line import call

torch.set_num_threads(1)
pytestmark = pytest.mark.filterwarnings("default")  # the zoo's own dependencies warn


def test_variance_and_entropy_by_hand() -> None:
    logits = np.log(np.array([[0.25] * 4, [0.7, 0.1, 0.1, 0.1]]))
    policy = FunctionPolicy(lambda seen: logits[: len(seen)], Discrete(4))
    variance, entropy = spread(policy, np.zeros((2, 3), np.float32))
    # Uniform: 0 and ln 4. The other: deviations of 0.45 and three times -0.15 from 0.25.
    assert variance == pytest.approx((0.0 + (0.45**2 + 3 * 0.15**2) / 4) / 2)
    other = -(0.7 * np.log(0.7) + 0.3 * np.log(0.1))
    assert entropy == pytest.approx((np.log(4) + other) / 2)
    certain = FunctionPolicy(lambda seen: np.full((len(seen), 4), -1e9) * [0, 1, 1, 1], Discrete(4))
    assert spread(certain, np.zeros((1, 3), np.float32))[0] == pytest.approx(0.25 * 0.75)


def made_up(differences: list[float]) -> pd.DataFrame:
    rows = []
    for seed, difference in enumerate(differences):
        for bits, variance in ((32, 0.2), (4, 0.2 + difference)):
            for steps in (100, 1000):
                rows.append(
                    {"run": f"{bits}-{seed}", "algo": "ppo", "env_id": "CartPole-v1",
                     "seed": seed, "bits": bits, "is_quantized": bits < 32, "steps": steps,
                     "kind": "float" if bits == 32 else f"{bits} bits",
                     "return": 1.0, "variance": variance if steps == 1000 else 9.0,
                     "entropy": 0.5, "common_variance": 0.1, "common_entropy": 0.5}
                )  # fmt: skip
    return pd.DataFrame(rows)


def empty_suites() -> pd.DataFrame:
    columns = ["precision", "algo", "error_percent", "bits", "scheme", "per", "activation_bits",
               "difference", "p_holm", "agent", "environment", "widest_range_per_sigma",
               "lost_percent", "counted"]  # fmt: skip
    return pd.DataFrame(columns=columns).astype({"counted": bool})


def test_differences_are_of_the_last_quarter_and_of_the_same_seed() -> None:
    paired = paired_with_float(made_up([-0.05, -0.06, -0.07])).set_index("bits")
    assert paired["variance_difference"][4] == pytest.approx(-0.06)
    # Student's t of 2 degrees of freedom: 4.303 * 0.01 / sqrt(3) = 0.0248.
    assert paired["variance_low"][4] == pytest.approx(-0.06 - 0.02484, abs=1e-4)
    assert paired["variance_difference"][32] == 0.0


def test_the_claim_is_judged_by_it() -> None:
    rng = np.random.default_rng(0)
    explored = made_up(list(-0.05 + 0.005 * rng.standard_normal(8)))
    claims = judge(QuarlEvidence(empty_suites(), pd.DataFrame(), {}, explored))
    assert claims[7].verdict == "held" and "-0.05" in claims[7].evidence
    assert "layer norm is not measured" in claims[7].evidence


def test_bits_of_one_seed_count_once_and_so_do_repeated_trainings() -> None:
    explored = made_up([-0.05, -0.06, -0.07])
    more = explored[explored["bits"] == 4].assign(bits=5, kind="5 bits")
    again = explored[explored["bits"] == 32]
    claims = judge(
        QuarlEvidence(empty_suites(), pd.DataFrame(), {}, pd.concat([explored, more, again]))
    )
    assert "over 3 trainings" in claims[7].evidence
    paired = paired_with_float(pd.concat([explored, again])).set_index("bits")
    assert paired["variance_difference"][4] == pytest.approx(-0.06)


@pytest.mark.parametrize(("normed", "verdict"), [(-0.03, "held"), (0.03, "did not hold")])
def test_layer_norm_has_to_lower_the_variance_as_well(normed: float, verdict: str) -> None:
    rng = np.random.default_rng(0)
    few, norm = (made_up(list(mean + 0.005 * rng.standard_normal(8))) for mean in (-0.05, normed))
    norm = norm[norm["bits"] == 4].assign(bits=32, kind="float, layer norm")
    norm["run"] = "normed-" + norm["run"]
    explored = pd.concat([few, norm], ignore_index=True)
    claims = judge(QuarlEvidence(empty_suites(), pd.DataFrame(), {}, explored))
    assert claims[7].verdict == verdict
    assert "with layer norm" in claims[7].evidence
    paired = paired_with_float(explored).set_index("kind")
    assert paired["seeds"].to_dict() == {"4 bits": 8, "float": 8, "float, layer norm": 8}
    assert paired["variance_difference"]["float, layer norm"] == pytest.approx(normed, abs=0.005)


def test_trainings_are_played_at_every_checkpoint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = {"n_steps": 16, "n_envs": 2, "batch_size": 16, "train.timesteps": 300,
                "train.checkpoint_every": 100, "train.keep_checkpoints": True,
                "save.tensorboard": False}  # fmt: skip
    kinds = {"float": {}, "few": {"quantization.bits": 4}, "normed": {"layer_norm": True}}
    for name, more in kinds.items():
        qpd.train("ppo", "CartPole-v1", overrides=settings | more, output=tmp_path / name)
    arguments = [str(tmp_path / name) for name in kinds]
    code, out, err = call(capsys, "analyze", "exploration", *arguments, "--games", "2", "-q",
                          "-o", str(tmp_path / "out"), "--json")  # fmt: skip
    assert code == 0, err
    found = json.loads(out)["exploration"]
    assert [row["kind"] for row in json.loads(out)["exploration_last"]] == [
        "4 bits", "float", "float, layer norm"]  # fmt: skip
    few = [row for row in found if row["bits"] == 4]
    # Checkpoints at 128, 224 or so, and the agent at the end; quantized from the half on.
    assert [row["is_quantized"] for row in few] == [False, *[True] * (len(few) - 1)]
    assert all(0.0 <= row["variance"] <= 0.25 for row in found)
    assert (tmp_path / "out" / "exploration.svg").exists()
    code, _, err = call(capsys, "analyze", "exploration", str(tmp_path))
    assert code == 2 and len(err.splitlines()) == 1
    qpd.train("ppo", "CartPole-v1", output=tmp_path / "gone",
              overrides=settings | {"train.keep_checkpoints": False})  # fmt: skip
    code, _, err = call(capsys, "analyze", "exploration", str(tmp_path / "gone"))
    assert code == 2 and "keep_checkpoints=true" in err


def test_a_kind_has_one_colour_on_every_task() -> None:
    explored = made_up([-0.05])
    few = explored.assign(env_id="Acrobot-v1")
    few = few.replace({"kind": {"4 bits": "2 bits"}, "bits": {4: 2}})
    figure = exploration_figure(pd.concat([explored, few]))
    (legend,) = figure.legends
    named = {
        text.get_text(): line.get_color()
        for text, line in zip(legend.get_texts(), legend.get_lines(), strict=True)
    }
    assert list(named) == ["2 bits", "4 bits", "float"] and len(set(named.values())) == 3
    for axis in figure.axes:
        for line in axis.get_lines():
            assert named[str(line.get_label())] == line.get_color()
