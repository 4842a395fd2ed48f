"""Tables of suites: formulas by hand, sweet spots, predictors, and QuaRL's claims."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from qpd.agents.results import AgentResult, Cell, LayerNoise, Played, write_cell
from qpd.analysis.paper.quarl import QuarlEvidence, judge
from qpd.analysis.paper.quarl_benchmarks import read_benchmarks
from qpd.analysis.suites.loss_predictors import loss_predictors
from qpd.analysis.suites.relative_errors import mean_errors, relative_errors
from qpd.analysis.suites.suite_frame import suite_frame, suite_results
from qpd.analysis.suites.sweet_spot import returns_by_bits, sweet_spots
from qpd.files.atomic import write_json
from qpd.runs.run_folder import sealed
from tests.command_line import call


def played(returns: list[float] | np.ndarray) -> Played:
    return Played(tuple(float(each) for each in returns), tuple(1 for _ in returns))


def cell(precision: str, returns: list[float] | np.ndarray, *, per: str = "column",
         sqnr: float = 30.0, flips: float = 0.1) -> Cell:  # fmt: skip
    scheme = "" if precision == "fp16" else "affine"
    layers = (LayerNoise("actor", 5.0, sqnr, 7),)
    per = per if scheme else ""
    return Cell(precision, scheme, per, "float", 100, flips, None, layers, played(returns))


def agent(
    name: str, algo: str, fp32: list[float] | np.ndarray, *cells: Cell,
    random: list[float] | None = None, width: float = 5.0,
) -> AgentResult:  # fmt: skip
    own = Cell("fp32", layers=(LayerNoise("actor", width, None, 9),), played=played(fp32))
    return AgentResult(
        f"{name}.zip", name, algo, name.partition("-")[2], own,
        played(random or [0.0] * len(fp32)), cells,
    )  # fmt: skip


def test_means_of_errors_by_hand() -> None:
    # E of 20% and -20% cancel; their sizes do not. R_fp32 below 0: no E, but a loss of 10%.
    found = suite_frame(
        [
            agent("a2c-One", "a2c", [100, 100], cell("W8", [80, 80])),
            agent("a2c-Two", "a2c", [100, 100], cell("W8", [120, 120])),
            agent("a2c-Three", "a2c", [-100, -100], cell("W8", [-110, -110]), random=[-200, -200]),
        ]
    )
    table = relative_errors(found).set_index("agent")
    assert table["error_percent"][["a2c-One", "a2c-Two"]].tolist() == [20.0, -20.0]
    assert np.isnan(table["error_percent"]["a2c-Three"])
    assert table["lost_percent"]["a2c-Three"] == 10.0
    means = mean_errors(found)
    for _, row in means.iterrows():  # a2c's, and those of all
        assert (row["agents"], row["num_e"]) == (3, 2)
        assert (row["mean_error"], row["mean_absolute"]) == (0.0, 20.0)
        assert row["mean_lost"] == pytest.approx(10 / 3)
    assert sorted(means["algo"]) == ["a2c", "all"]
    dqn = suite_frame([agent("dqn-Four", "dqn", [100, 100], cell("W8", [60, 60]))])
    both = mean_errors(pd.concat([found, dqn])).set_index("algo")["mean_lost"]
    assert both["replay"] == both["dqn"] == 40.0 and both["all"] == pytest.approx(12.5)
    assert both["on-policy and search"] == pytest.approx(10 / 3)


def test_the_sweet_spot_is_what_games_cannot_tell_from_the_best() -> None:
    rng = np.random.default_rng(0)
    fp32 = rng.normal(100.0, 5.0, 60)
    noise = [rng.normal(0.0, 3.0, 60) for _ in range(4)]
    result = agent(
        "dqn-Game",
        "dqn",
        fp32,
        cell("W8", fp32 + noise[0]),
        cell("W6", fp32 + noise[1]),
        cell("W4", fp32 - 20.0 + noise[2]),
        cell("W2", fp32 - 90.0 + noise[3]),
    )
    (spot,) = sweet_spots([result]).to_dict("records")
    assert (spot["from_bits"], spot["to_bits"], spot["is_whole"]) == (6, 8, True)
    assert spot["fewest"] == 6  # 4 bits keep 80%
    curve = returns_by_bits([result])
    assert curve["bits"].tolist() == [32, 8, 6, 4, 2]
    assert curve["share"].iloc[0] == 1.0


def test_equal_bits_are_left_out_of_few_sweet_spots() -> None:
    """Five numbers of bits of one true mean: 5% of agents may lose one; the best is chosen, too."""
    rng = np.random.default_rng(5)
    found = []
    for number in range(60):
        fp32 = rng.normal(100.0, 20.0, 20)
        cells = [cell(f"W{bits}", fp32 + rng.normal(0.0, 5.0, 20)) for bits in (8, 6, 5, 4, 2)]
        found.append(agent(f"dqn-Game{number}", "dqn", fp32, *cells))
    spots = sweet_spots(found)
    assert (~((spots["from_bits"] == 2) & (spots["to_bits"] == 8))).sum() <= 5
    # All 600 pairs together: none.
    together = sweet_spots(found, over_agents=True)
    assert (together["from_bits"] == 2).all() and (together["to_bits"] == 8).all()


def test_gaps_are_said_and_nothing_kept_is_nothing() -> None:
    fp32 = np.linspace(90.0, 110.0, 40)
    result = agent("dqn-Game", "dqn", fp32, cell("W8", fp32 - 50), cell("W4", fp32 - 90),
                   cell("W2", fp32 - 50))  # fmt: skip
    (spot,) = sweet_spots([result]).to_dict("records")
    assert (spot["from_bits"], spot["to_bits"], spot["is_whole"]) == (2, 8, False)
    assert spot["fewest"] is None


def test_a_perfect_predictor_has_a_rank_correlation_of_one() -> None:
    agents = [
        agent(f"ppo-Game{k}", "ppo", [100.0, 101.0], cell("W4", [100.0 - 5 * k, 101.0 - 5 * k],
              sqnr=40.0 - k, flips=0.1), width=float(k % 2))
        for k in range(8)
    ]  # fmt: skip
    found = loss_predictors(suite_frame(agents)).query("agents == 'all'").set_index("candidate")
    assert found["spearman"]["worst_sqnr_db"] == pytest.approx(-1.0)
    assert found["high"]["worst_sqnr_db"] == pytest.approx(-1.0)
    assert np.isnan(found["spearman"]["changed_actions"])  # the same for all: no ranks
    assert abs(found["spearman"]["widest_range_per_sigma"]) < 0.7


def games_of(base: float) -> list[float]:
    return [base + k for k in (-1.0, 0.0, 1.0)]


def test_claims_are_judged_and_what_is_missing_names_its_command() -> None:
    agents = [
        agent(f"a2c-Game{k}", "a2c", games_of(100.0), cell("fp16", games_of(100.0 + 0.01 * k)),
              cell("W8", games_of(90.0 + 0.01 * k)), width=5.0 + k)
        for k in range(8)
    ]  # fmt: skip
    # QAT is 30 points and more above PTQ in each of three agents' six trainings.
    trained = {
        f"dqn-Game{k}": {
            str(seed): {
                "fp32": games_of(100.0),
                "random": games_of(0.0),
                "QAT-4": games_of(90.0 + seed + k),
                "PTQ-4": games_of(60.0 + 0.5 * seed),
            }
            for seed in range(6)
        }
        for k in range(3)
    }
    evidence = QuarlEvidence(suite_frame(agents), sweet_spots(agents), trained)
    claims = {claim.number: claim for claim in judge(evidence)}
    assert list(claims) == list(range(1, 11))
    assert claims[1].verdict == "held"
    assert claims[2].verdict == "did not hold" and "+10.0%" in claims[2].evidence
    assert claims[4].verdict == "not measured" and "--bits 6,5" in claims[4].evidence
    assert claims[9].verdict == claims[10].verdict == "not measured"
    assert "benchmarks.device.navigation" in claims[10].evidence
    assert claims[5].verdict == "held" and "4 bits +32%" in claims[5].evidence
    # Of one agent, however many trainings it has, nothing is known about others.
    alone = replace(evidence, trained={"dqn-Game0": trained["dqn-Game0"]})
    assert judge(alone)[4].verdict == "not measured"
    # Wider weights lost less here: games grow with k, and so does the width.
    assert claims[6].verdict == "did not hold"
    assert claims[7].verdict == claims[10].verdict == "not measured"
    assert all((claim.p is None) == (claim.number in (3, 4, 7, 8, 9, 10))
               for claim in claims.values())  # fmt: skip


def suite_on_disk(folder: Path, results: list[AgentResult]) -> Path:
    """Write what `qpd quantize AGENT...` leaves, without playing."""
    write_json(folder / "suite.json", {})
    for result in results:
        place = folder / result.name
        place.mkdir(parents=True)
        about = {"source": result.source, "sha256": Path(result.source).name, "algo": result.algo,
                 "environment": {"env_id": result.env_id}}  # fmt: skip
        write_json(place / "agent.json", sealed(about))
        write_cell(place / "fp32.json", result.fp32)
        write_cell(place / "random.json", Cell("random", played=result.random))
        for each in result.cells:
            key = "-".join(part for part in (each.precision, each.scheme, each.per) if part)
            write_cell(place / f"{key}.json", each)
    return folder


def test_commands_print_and_draw(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "suites"
    fp32 = np.linspace(90.0, 110.0, 8)
    first = agent("ppo-Game", "ppo", fp32, cell("fp16", fp32), cell("W8", fp32 - 1),
                  cell("W4", fp32 - 30), cell("W2", fp32 - 95))  # fmt: skip
    unfinished = Cell("W3", "affine", "column", played=played([1.0]))
    (folder / "one").mkdir(parents=True)
    first = replace(first, cells=(*first.cells, unfinished))
    suite_on_disk(folder / "one", [first])
    # A second suite of the same agent: its cells join, told apart by what shares a range.
    (folder / "two").mkdir()
    suite_on_disk(folder / "two", [agent("ppo-Game", "ppo", fp32,
                                         cell("W8", fp32 - 60, per="tensor"))])  # fmt: skip
    code, out, err = call(capsys, "analyze", "errors", str(folder), "--json")
    assert code == 0, err
    rows = json.loads(out)["errors"]
    assert [(row["precision"], row["per"]) for row in rows] == [
        ("fp16", ""), ("W8", "column"), ("W8", "tensor"), ("W4", "column"), ("W2", "column")
    ]  # fmt: skip
    assert [round(row["error_percent"]) for row in rows] == [0, 1, 60, 30, 95]
    for command, name in (("bits", "returns_by_bits"), ("losses", "losses")):
        code, out, err = call(capsys, "analyze", command, str(folder), "-o", str(tmp_path / "out"))
        assert code == 0, err
        for suffix in ("png", "svg", "csv"):
            assert (tmp_path / "out" / f"{name}.{suffix}").stat().st_size > 100
    code, out, err = call(capsys, "analyze", "paper", "--paper", "quarl", str(folder))
    assert code == 0, err
    assert "fp16 costs nothing" in out and "not measured" in out


def test_an_agent_file_that_was_edited_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    suite = suite_on_disk(tmp_path, [agent("ppo-Game", "ppo", [1.0, 2.0], cell("W8", [1.0, 2.0]))])
    file = suite / "ppo-Game" / "agent.json"
    file.write_text(file.read_text().replace('"ppo"', '"dqn"'))
    code, _, err = call(capsys, "analyze", "errors", str(suite))
    assert code == 2 and "agent.json: is damaged" in err and len(err.splitlines()) == 1


def test_what_is_no_suite_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = call(capsys, "analyze", "errors", str(tmp_path))
    assert (code, out) == (2, "") and "no suite there" in err and len(err.splitlines()) == 1
    suite = suite_on_disk(tmp_path, [agent("ppo-Game", "ppo", [1.0, 2.0], cell("W8", [1.0, 2.0]))])
    (tmp_path / "results").mkdir()
    for content in ("[]", '{"0": {"fp32": ["x"]}}'):
        (tmp_path / "results" / "dqn-CartPole-v1.json").write_text(content)
        code, _, err = call(capsys, "analyze", "paper", "--paper", "quarl", str(suite),
                            "--trained", str(tmp_path / "results"))  # fmt: skip
        assert code == 2 and "is no result of" in err
    code, _, err = call(capsys, "analyze", "paper", str(suite), "--trained", str(tmp_path))
    assert code == 2 and "--trained: belongs to --paper quarl" in err
    code, _, err = call(capsys, "analyze", "paper", "--paper", "quarl", str(suite),
                        "--devices", str(tmp_path / "device.json"))  # fmt: skip
    assert code == 2 and "--devices: belongs to --paper qpd" in err


def test_what_the_benchmarks_measured_stands_beside_its_claims(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    updates = {
        "A": {"parameters": 1.2e6, "speedup": 2.0},
        "C": {"parameters": 129e6, "speedup": 3.0},
    }
    trainings = {"0": {"fp32": [10.0, 12.0, 14.0], "bf16": [11.0, 13.0, 15.0]}}
    policy = {"policy": "64-64", "machine": "x86_64", "bytes": [400, 100], "latency_us": [6.0, 2.0],
              "success_difference": [-0.04, -0.06, -0.02]}  # fmt: skip
    (tmp_path / "mixed_precision.json").write_text(
        json.dumps({"updates": updates, "trainings": trainings})
    )
    (tmp_path / "navigation.json").write_text(json.dumps({"I": policy}))
    one = [agent("a2c-Game", "a2c", games_of(1.0), cell("W8", games_of(1.0)))]
    evidence = QuarlEvidence(
        suite_frame(one), sweet_spots(one), {}, None, read_benchmarks(tmp_path)
    )
    ninth, tenth = judge(evidence)[8:]
    assert ninth.verdict == tenth.verdict == "not decided"
    assert "C (129.0 M) 3.00x; PPO on Pong in fp32 and bf16: 12.0 and 13.0 (+1.0" in ninth.evidence
    assert "3.0x faster, 4.0x smaller, -4.0 [-6.0, -2.0] points" in tenth.evidence
    (tmp_path / "suite").mkdir()
    made = agent("a2c-Game", "a2c", [1.0, 2.0], cell("W8", [1.0, 2.0]))
    suite = suite_on_disk(tmp_path / "suite", [made])
    (tmp_path / "navigation.json").write_text(json.dumps({"I": {"policy": "64-64"}}))
    for folder, said in ((tmp_path, "is no result of"), (tmp_path / "none", "holds neither")):
        code, _, err = call(capsys, "analyze", "paper", str(suite), "--paper", "quarl",
                            "--benchmarks", str(folder))  # fmt: skip
        assert code == 2 and said in err and len(err.splitlines()) == 1
    code, _, err = call(capsys, "analyze", "paper", str(suite), "--benchmarks", str(tmp_path))
    assert code == 2 and "--benchmarks: belongs to --paper quarl" in err


def test_training_that_wins_at_some_bits_and_loses_at_others_does_not_beat_rounding() -> None:
    seeds = {
        str(seed): {
            "fp32": games_of(100.0), "random": games_of(0.0),
            "QAT-8": games_of(60.0 + 0.5 * seed), "PTQ-8": games_of(90.0),
            "QAT-4": games_of(90.0 + 0.5 * seed), "PTQ-4": games_of(20.0),
        }
        for seed in range(8)
    }  # fmt: skip
    trained = {"dqn-Game0": seeds, "dqn-Game1": dict(list(seeds.items())[2:])}
    one = [agent("a2c-Game", "a2c", games_of(1.0), cell("W8", games_of(1.0)))]
    fifth = judge(QuarlEvidence(suite_frame(one), sweet_spots(one), trained))[4]
    assert fifth.verdict == "did not hold" and "4 bits +7" in fifth.evidence, fifth


@pytest.mark.parametrize(("agents", "verdict"), [(1, "not decided"), (2, "held")])
def test_one_task_decides_nothing_about_what_five_bits_keep(agents: int, verdict: str) -> None:
    seeds = {
        str(seed): {
            "fp32": games_of(100.0),
            "random": games_of(0.0),
            "QAT-5": games_of(99.0 + seed),
        }
        for seed in range(3)
    }
    one = [agent("a2c-Game", "a2c", games_of(1.0), cell("W8", games_of(1.0)))]
    trained = {f"dqn-Game{k}": seeds for k in range(agents)}
    fourth = judge(QuarlEvidence(suite_frame(one), sweet_spots(one), trained))[3]
    assert fourth.verdict == verdict and "dqn-Game0" in fourth.evidence


def test_two_agents_of_one_name_stay_apart(tmp_path: Path) -> None:
    for name, returns in (("one", [100.0, 100.0]), ("two", [50.0, 50.0])):
        (tmp_path / name).mkdir()
        found = replace(agent("ppo-Game", "ppo", returns, cell("W8", returns)), source=name)
        suite_on_disk(tmp_path / name, [found])
    (tmp_path / "three").mkdir()  # the first agent's, other games
    found = replace(agent("ppo-Game", "ppo", [90.0] * 3, cell("W8", [90.0] * 3)), source="one")
    suite_on_disk(tmp_path / "three", [found])
    results = suite_results([tmp_path / name for name in ("one", "two", "three")])
    assert [each.name for each in results] == ["ppo-Game", "ppo-Game-2", "ppo-Game (3 games)"]
    assert suite_frame(results)["return_fp32"].tolist() == [100.0, 50.0, 90.0]
    # The first one's very games, measured at another place of its file.
    (tmp_path / "moved").mkdir()
    same = agent("ppo-Game", "ppo", [100.0, 100.0], cell("W4", [1.0, 1.0]))
    suite_on_disk(tmp_path / "moved", [replace(same, source="elsewhere/one")])
    (joined,) = suite_results([tmp_path / "one", tmp_path / "moved"])
    assert [each.precision for each in joined.cells] == ["W8", "W4"]


def test_an_agent_of_two_suites_counts_once(tmp_path: Path) -> None:
    # A loses half in ten games and in three; B and C lose nothing.
    for place, count in (("few", 3), ("many", 10)):
        (tmp_path / place).mkdir()
        returns = [100.0] * count
        lost = [each / 2 for each in returns]
        found = [replace(agent("ppo-A", "ppo", returns, cell("W8", lost)), source="a")]
        if place == "many":
            found += [
                replace(agent(f"ppo-{name}", "ppo", returns, cell("W8", returns)), source=name)
                for name in "BC"
            ]
        suite_on_disk(tmp_path / place, found)
    frame = suite_frame(suite_results([tmp_path / "few", tmp_path / "many"]))
    assert frame["agent"].tolist() == ["ppo-A", "ppo-A (10 games)", "ppo-B", "ppo-C"]
    found = mean_errors(frame).query("algo == 'all'")
    assert found["agents"].tolist() == [3]
    assert found["mean_lost"].tolist() == pytest.approx([50 / 3])


def test_equal_games_of_two_seeds_stay_apart(tmp_path: Path) -> None:
    """An agent at its cap has the same returns by any seed: its games are others all the same."""
    for seed, lost in ((0, [0.0, 0.0]), (1, [50.0, 60.0])):
        (tmp_path / str(seed)).mkdir()
        best = replace(agent("ppo-Game", "ppo", [500.0] * 2, cell("W4", lost)), source="one")
        write_json(suite_on_disk(tmp_path / str(seed), [best]) / "suite.json", {"seed": seed})
    results = suite_results([tmp_path / "0", tmp_path / "1"])
    assert [each.cells[0].played.returns for each in results] == [(0.0, 0.0), (50.0, 60.0)]


@pytest.mark.parametrize("command", ["errors", "losses", "bits", "paper"])
def test_a_suite_that_has_not_played_is_one_line(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    suite = suite_on_disk(tmp_path, [agent("ppo-Game", "ppo", [1.0, 2.0])])
    paper = ("--paper", "quarl") if command == "paper" else ()
    code, out, err = call(capsys, "analyze", command, *paper, str(suite))
    assert (code, out) == (2, "") and "no agent has played in few bits yet" in err


def test_two_kinds_of_one_agent_are_not_two_agents() -> None:
    def cells(per: str, best: int) -> list[Cell]:
        each = {bits: 100.0 if bits == best else 1.0 for bits in (2, 4, 8)}
        return [cell(f"W{bits}", games_of(mean), per=per) for bits, mean in each.items()]

    alone = agent("ppo-A", "ppo", games_of(50.0), *cells("column", 2), *cells("tensor", 8))
    claims = {
        claim.number: claim
        for claim in judge(QuarlEvidence(suite_frame([alone]), sweet_spots([alone]), {}))
    }
    assert len(sweet_spots([alone])) == 2
    assert claims[3].verdict == "not measured" and "two agents" in claims[3].evidence
    assert claims[2].verdict == "not measured" and "three agents" in claims[2].evidence
