"""QuaRL's deployment: a navigation policy in C, 8-bit integers beside float32.

python -m benchmarks.device.navigation AGENT... [--episodes 1000] [--results FILE]
python -m benchmarks.device.navigation --shapes 64-64-64 256-256-256 [--results FILE]

AGENT: DQN agents of `qpd/Navigation-v0` (docs/environments.md says how they are trained). For each:
success and return of the agent in float32 and of its integers (weights and activations in 8 bits,
`qpd quantize AGENT --bits 8 --activations 8`), from the same starts, and latency and constants of
both in C, from floats to the best action. The float32 program is float_network.c, whose weights are
laid out for SIMD, compiled with -O3 -march=native -ffast-math; the integers are
`qpd export --format c` with SIMD, in the same program. They take turns; medians of 7. Where
aarch64-linux-gnu-gcc and QEMU are installed, the integers are also tested there. `--results` keeps
the numbers as JSON, an entry for each agent. `--shapes` times networks of random numbers instead,
and plays no game; in FILE it replaces the latencies of policies of these shapes.
"""

from __future__ import annotations

import argparse
import json
import platform
import shutil
import statistics
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from stable_baselines3 import DQN

from qpd.agents.agent_run import integer_agent
from qpd.agents.quantized_agent import agent_policy
from qpd.bench.c_program import CProgram
from qpd.environments.making import make_one
from qpd.environments.policy import Policy
from qpd.environments.source import EnvironmentSource
from qpd.evaluation.games import bootstrap_interval
from qpd.export.bundle import ExportSource, golden_vectors
from qpd.export.c.code import export_c
from qpd.files.atomic import write_json
from qpd.integer.integer_student import IntegerEngine, IntegerStudent
from qpd.quantization.weight_quantizer import WeightQuantizer
from qpd.teachers import Teacher, load_teacher
from qpd.teachers.networks.actor import Actor, actor_of

SOURCE = EnvironmentSource("qpd/Navigation-v0")
FLOAT_PROGRAM = Path(__file__).with_name("float_network.c")
TURNS, SECONDS, GAMES_AT_ONCE = 7, 0.3, 50
BLOCK, TIMED = 64, 512  # of float_network.c: outputs at once, and observations


def main() -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("agent", nargs="*")
    parser.add_argument("--shapes", nargs="+", default=[], help="of random numbers, 64-64-64")
    parser.add_argument("--episodes", type=int, default=1000)
    parser.add_argument("--results", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if bool(arguments.agent) == bool(arguments.shapes):
        parser.error("give agents, or --shapes")
    if arguments.shapes:
        _time_shapes(arguments.shapes, arguments.results)
        return
    print("| policy | arithmetic | bytes | latency in C, us | success | return |")
    print("|---|---|---|---|---|---|")
    for source in arguments.agent:
        found = _measured(load_teacher(source), arguments.episodes)
        for line in _lines(found):
            print(line, flush=True)
        if arguments.results is not None:
            file = arguments.results
            known = json.loads(file.read_text()) if file.exists() else {}
            write_json(file, known | {Path(source).name: found})


def _time_shapes(shapes: list[str], results: Path | None) -> None:
    print("| shape | bytes: float32, 8 bits | float32, us | 8 bits, us | times as fast |")
    print("|---|---|---|---|---|")
    known = {} if results is None or not results.exists() else json.loads(results.read_text())
    for shape in shapes:
        teacher = _random_agent([int(width) for width in shape.split("-")])
        actor = actor_of(teacher.network, teacher.activation)
        states = _played(agent_policy(teacher, actor), 8, 1)[2]
        made = integer_agent(
            teacher, states, WeightQuantizer("dorefa_scaled", 8, "column"), 8, 1, 0
        )
        with tempfile.TemporaryDirectory() as name:
            times, sizes, _ = _in_c(actor, made.integers, states, Path(name))
        print(
            f"| {shape} | {sizes[0]:,}, {sizes[1]:,} | {times[0]:.2f} | {times[1]:.2f} "
            f"| {times[0] / times[1]:.1f} |",
            flush=True,
        )
        for each in known.values():
            if each["policy"] == shape:
                each |= {
                    "machine": platform.machine(),
                    "latency_us": [round(time, 3) for time in times],
                }
    if results is not None:
        write_json(results, known)


def _random_agent(widths: list[int]) -> Teacher:
    with tempfile.TemporaryDirectory() as name:
        options: dict[str, Any] = {"policy_kwargs": {"net_arch": widths}, "buffer_size": 1}
        agent = DQN("MlpPolicy", make_one(SOURCE), seed=0, device="cpu", **options)
        file = Path(name) / "dqn-qpd-Navigation-v0.zip"
        agent.save(file)
        return load_teacher(str(file))


def _measured(teacher: Teacher, episodes: int) -> dict[str, Any]:
    actor = actor_of(teacher.network, teacher.activation)
    exact = agent_policy(teacher, actor)
    _, _, states = _played(exact, 32, 1)  # other games than those that count
    states = states[:4096]
    made = integer_agent(teacher, states, WeightQuantizer("dorefa_scaled", 8, "column"), 8, 1, 0)
    found = [_played(each, episodes, 0) for each in (exact, IntegerEngine(made.integers))]
    with tempfile.TemporaryDirectory() as name:
        latencies, sizes, note = _in_c(actor, made.integers, states, Path(name))
    change = found[1][0].astype(float) - found[0][0]
    low, high = bootstrap_interval(change)
    return {
        "policy": "-".join(map(str, teacher.hidden_widths)),
        "episodes": episodes,
        "machine": platform.machine(),
        "bytes": sizes,
        "latency_us": [round(each, 3) for each in latencies],
        "success": [float(games[0].mean()) for games in found],
        "return": [float(games[1].mean()) for games in found],
        "success_difference": [float(change.mean()), low, high],
        "note": note,
    }


def _lines(found: dict[str, Any]) -> list[str]:
    sizes, times = found["bytes"], found["latency_us"]
    lines = [
        f"| {found['policy']} | {kind} | {sizes[k]:,} | {times[k]:.2f} | "
        f"{100 * found['success'][k]:.1f}% | {found['return'][k]:.2f} |"
        for k, kind in enumerate(("float32", "8-bit integers"))
    ]
    change, low, high = (100 * each for each in found["success_difference"])
    lines.append(
        f"| | difference | {sizes[0] / sizes[1]:.1f}x smaller | {times[0] / times[1]:.1f}x faster "
        f"| {change:+.1f} [{low:.1f}, {high:.1f}] points | {found['note']} |"
    )
    return lines


def _played(policy: Policy, episodes: int, seed: int) -> tuple[np.ndarray, ...]:
    """Return successes, returns and some states of games; game k has the same start for all."""
    envs = [make_one(SOURCE) for _ in range(GAMES_AT_ONCE)]
    success, returns, states = np.zeros(episodes, bool), np.zeros(episodes), []
    for first in range(0, episodes, GAMES_AT_ONCE):
        games = list(range(first, min(first + GAMES_AT_ONCE, episodes)))
        seen = {k: env.reset(seed=1_000_000 * seed + k)[0] for k, env in zip(games, envs)}  # noqa: B905
        while seen:
            batch = np.stack(list(seen.values())).astype(np.float32)
            states.append(batch[:: max(1, len(batch) // 4)])
            for k, action in zip(list(seen), policy(batch).argmax(1), strict=True):
                observation, reward, ended, cut, info = envs[k - first].step(action)
                returns[k] += reward
                seen[k] = observation
                if ended or cut:
                    success[k] = info["is_success"]
                    del seen[k]
    return success, returns, np.concatenate(states)[:: max(1, len(states) // 1024)]


def _in_c(
    actor: Actor, integers: IntegerStudent, states: np.ndarray, folder: Path
) -> tuple[list[float], list[int], str]:
    states = states[:: max(1, len(states) // TIMED)][:TIMED]
    source = ExportSource(integers, {}, "navigation")
    for name, content in export_c(source, golden_vectors(integers)).items():
        (folder / name).write_bytes(content)
    levels, floats = folder / "levels.bin", folder / "floats.bin"
    levels.write_bytes(integers.encode(states).tobytes())
    floats.write_bytes(states.astype(np.float32).tobytes())
    golden = CProgram(folder, False, levels)  # builds it, and runs its own test
    (folder / "network.h").write_text(_header(actor))
    flags, library = ["gcc", "-O3", "-march=native", f"-I{folder}"], ("network", "encode")
    plain, integer = folder / "float_network", folder / "integer_network"
    parts = [folder / f"qpd_{name}.c" for name in library]
    subprocess.run([*flags, "-ffast-math", "-o", plain, FLOAT_PROGRAM], check=True)
    subprocess.run([*flags, "-DINTEGERS", "-o", integer, FLOAT_PROGRAM, *parts], check=True)
    with torch.no_grad():
        wanted = actor(torch.from_numpy(states.astype(np.float32))).argmax(1).numpy()
    said = subprocess.run([plain, "0", floats], capture_output=True, text=True, check=True).stdout
    # Sums in another order may turn a near tie.
    assert np.mean(np.array(said.split(), int) == wanted) > 0.99
    times: tuple[list[float], list[float]] = [], []
    for _ in range(TURNS):
        for program, found in zip((plain, integer), times, strict=True):
            ran = subprocess.run([program, str(SECONDS), floats], capture_output=True, check=True)
            found.append(json.loads(ran.stdout)["median_ns"] / 1e3)
    bytes_of = [4 * actor.num_parameters, int(golden.line["constant_bytes"])]
    return [statistics.median(each) for each in times], bytes_of, _on_aarch64(folder)


def _on_aarch64(folder: Path) -> str:
    compiler = "aarch64-linux-gnu-gcc"
    emulator = next(filter(shutil.which, ("qemu-aarch64-static", "qemu-aarch64")), None)
    if shutil.which(compiler) is None or emulator is None:
        return "aarch64: not installed"
    library = ("qpd_test.c", "qpd_check.c", "qpd_network.c", "qpd_actions.c", "qpd_encode.c")
    sources = [name for name in library if (folder / name).exists()]
    subprocess.run(
        [compiler, "-static", "-std=c99", "-O2", "-o", "arm", *sources], cwd=folder, check=True
    )
    ran = subprocess.run([emulator, "./arm"], cwd=folder, capture_output=True, text=True)
    return f"aarch64: {ran.stdout.strip()}"


def _filled_up(width: int) -> int:
    return -(-width // BLOCK) * BLOCK


def _header(actor: Actor) -> str:
    widths = [actor.layers[0].weight.shape[1], *(len(layer.bias) for layer in actor.layers)]
    lines = [
        f"#define INPUTS {widths[0]}",
        f"#define WIDEST {max(map(_filled_up, widths))}",
        f"#define LAYERS {len(actor.layers)}",
        f"#define CONSTANT_BYTES {4 * actor.num_parameters}",
        f"static const int widths[] = {{{', '.join(map(str, widths))}}};",
    ]
    for position, layer in enumerate(actor.layers):
        # Blocks of 64 outputs, in each of which all inputs follow each other.
        more = _filled_up(len(layer.bias)) - len(layer.bias)
        weight = torch.nn.functional.pad(layer.weight, (0, 0, 0, more)).unflatten(0, (-1, BLOCK))
        bias = torch.nn.functional.pad(layer.bias, (0, more))
        for kind, tensor in (("weight", weight.transpose(1, 2)), ("bias", bias)):
            numbers = ", ".join(f"{value!r}f" for value in tensor.detach().flatten().tolist())
            lines.append(f"static const float {kind}_{position}[] = {{{numbers}}};")
    for kind, array in (("weight", "weights"), ("bias", "biases")):
        names = ", ".join(f"{kind}_{position}" for position in range(len(actor.layers)))
        lines.append(f"static const float *const {array}[] = {{{names}}};")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
