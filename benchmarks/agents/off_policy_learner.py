"""Agent steps per second of SAC, TD3 and DDPG: Stable-Baselines3's updates and the fast learner's.

    python -m benchmarks.agents.off_policy_learner [--algo sac] [--env HalfCheetah-v4] [--rounds 5]

One thread; networks of 256-256, batches of 256, an update after every step, environment, acting and
replay memory included. The ways take turns, round by round, in one process; medians. GFLOP/s are
those of the update's matrix products alone, beside the peak of a product of the same size that is
measured in the same rounds. The integer controller has a core of 3 bits, and its critics bfloat16.
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings
from typing import Any, NamedTuple

import torch
from stable_baselines3 import DDPG, SAC, TD3

from qpd.quantization.controller_layer import WARM_UP
from qpd.recipe.train_schema import TrainPrecision
from qpd.teachers.training.controller import AgentController
from qpd.teachers.training.fast_learner import use_fast_learner

WIDTH, BATCH = 256, 256
STEPS = 200  # of each way in each round
CLASSES: dict[str, Any] = {"sac": SAC, "td3": TD3, "ddpg": DDPG}
BITS = (8, 3, 8)  # input, core and output of an integer controller


class Way(NamedTuple):
    """Say how updates are made: the products' dtype, or the format of mixed precision."""

    dtype: torch.dtype | None = None
    form: str | None = None
    compiles: bool = False
    is_controller: bool = False


WAYS = {
    "Stable-Baselines3": Way(),
    "float32, not compiled": Way(),
    "bfloat16, not compiled": Way(torch.bfloat16),
    "float32": Way(compiles=True),
    "bfloat16": Way(torch.bfloat16, compiles=True),
    "fp16": Way(form="fp16"),  # simulated
    "controller, not compiled": Way(torch.bfloat16, is_controller=True),
    "controller": Way(torch.bfloat16, compiles=True, is_controller=True),
}


def main() -> None:
    """Measure, and print a table."""
    warnings.simplefilter("ignore")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--algo", choices=list(CLASSES), default="sac")
    parser.add_argument("--env", default="HalfCheetah-v4")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    models = {way: _model(arguments.algo, arguments.env, way) for way in WAYS}
    rates: dict[str, list[float]] = {way: [] for way in WAYS}
    updates: dict[str, list[float]] = {way: [] for way in WAYS}
    peaks: dict[str, list[float]] = {"float32": [], "bfloat16": []}
    for _ in range(arguments.rounds):
        for way, model in models.items():
            rates[way].append(STEPS / _seconds(model.learn, STEPS, reset_num_timesteps=False))
            updates[way].append(_seconds(_train, model) / STEPS)
        for name, found in peaks.items():
            found.append(_peak(getattr(torch, name)))
    flops = update_flops(arguments.algo, models["Stable-Baselines3"])
    print(f"{arguments.algo} on {arguments.env}, {arguments.rounds} rounds of {STEPS} steps")
    print("updates by                steps/s  ratio  update ms  GFLOP/s")
    base = statistics.median(rates["Stable-Baselines3"])
    for way in WAYS:
        rate, update = statistics.median(rates[way]), statistics.median(updates[way])
        ratio = statistics.median(
            mine / theirs
            for mine, theirs in zip(rates[way], rates["Stable-Baselines3"], strict=True)
        )
        gflops = flops / update / 1e9
        print(f"{way:25} {rate:7.0f}  {ratio:5.2f}  {1e3 * update:9.2f}  {gflops:7.0f}")
    measured = ", ".join(f"{name} {statistics.median(found):.0f}" for name, found in peaks.items())
    print(
        f"GFLOP/s of a {WIDTH} x {WIDTH} x {BATCH} product: {measured}; baseline {base:.0f} steps/s"
    )


def update_flops(algo: str, model: Any) -> float:
    """Return the floating-point operations of the products that one update needs, on average."""
    seen, acts = model.observation_space.shape[0], model.action_space.shape[0]
    outputs = acts * (2 if algo == "sac" else 1)
    actor = seen * WIDTH + WIDTH * WIDTH + WIDTH * outputs
    critic = (seen + acts) * WIDTH + WIDTH * WIDTH + WIDTH
    behind = critic - (seen + acts) * WIDTH  # back to the first layer, not through it
    count = 1 if algo == "ddpg" else 2
    regression = count * (critic + critic + critic + behind)  # target, values, weights, inputs
    every = 2 if algo == "td3" else 1
    followed = count if algo == "sac" else 1
    back = behind + acts * WIDTH
    improvement = followed * (critic + back) + 2 * actor + WIDTH * WIDTH + WIDTH * outputs
    if algo != "sac":  # the target's actions, and the actor's own at its updates
        return 2.0 * BATCH * (actor + regression + improvement / every)
    return 2.0 * BATCH * (actor + regression + improvement)


def _model(algo: str, env: str, way: str) -> Any:
    model = CLASSES[algo](
        "MlpPolicy",
        env,
        seed=0,
        device="cpu",
        buffer_size=20_000,
        learning_starts=BATCH,
        batch_size=BATCH,
        train_freq=1,
        gradient_steps=1,
        policy_kwargs={"net_arch": [WIDTH, WIDTH]},
    )
    if way != "Stable-Baselines3":
        dtype, form, compiles, is_controller = WAYS[way]
        precision = None if form is None else _precision(algo, form)
        controller = AgentController(model, BITS, "narrow") if is_controller else None
        use_fast_learner(model, dtype, controller, precision, compiles)
        if controller is not None:
            controller.begin(0)
    # At every second update of TD3 a controller learns, and averages its scales at first.
    model.learn(BATCH + 50 + (2 * WARM_UP if WAYS[way].is_controller else 0))
    return model


def _precision(algo: str, form: str) -> TrainPrecision:
    if algo != "sac":
        return TrainPrecision(format=form)
    return TrainPrecision(format=form, methods=[], baseline="placed_mixed_precision")


def _train(model: Any) -> None:
    for _ in range(STEPS):
        model.train(1, BATCH)


def _seconds(call: Any, *arguments: Any, **options: Any) -> float:
    start = time.perf_counter()
    call(*arguments, **options)
    return time.perf_counter() - start


def _peak(dtype: torch.dtype) -> float:
    """Return the GFLOP/s of products in a row."""
    left, right = (torch.randn(WIDTH, WIDTH).to(dtype) for _ in range(2))
    place = torch.empty_like(left)
    seconds = min(
        _seconds(lambda: [torch.mm(left, right, out=place) for _ in range(100)]) for _ in range(3)
    )
    return 100 * 2.0 * WIDTH**3 / seconds / 1e9


if __name__ == "__main__":
    main()
