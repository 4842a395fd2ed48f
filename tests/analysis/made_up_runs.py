"""Run directories with made-up returns, for tests of what reads them: no training."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from qpd.recipe.loading import load_recipe, override_recipe
from qpd.runs.manifest import PHASES, Manifest, PhaseRecord, TeacherRecord

REFERENCE = Path(__file__).resolve().parents[2] / "runs-reference"
RETURNS = {"teacher": [10.0, 30], "distilled": [20.0, 40], "qat": [10.0, 20]}


def make_run(
    path: Path,
    evaluations: Mapping[str, Sequence[float]] | None = None,
    *,
    seed: int = 0,
    changes: Sequence[str] = (),
    algo: str = "ppo",
    env_id: str = "BreakoutNoFrameskip-v4",
    acting: str = "sampled",
    commit: str | None = None,
    distilled: Mapping[str, object] | None = None,
) -> Path:
    """A finished run of the quickstart with these returns by policy and `changes` to its recipe.

    `distilled` is what its manifest tells of phase 1.
    """
    path.mkdir(parents=True)
    recipe = load_recipe(REFERENCE / "quickstart" / "recipe.yaml")
    recipe = override_recipe(recipe, [f"name={path.name}", f"seed={seed}", *changes])
    (path / "recipe.yaml").write_text(recipe.to_yaml(), encoding="utf-8")
    found = {
        name: {
            "mean": sum(returns) / len(returns),
            "interval": [float(min(returns)), float(max(returns))],
            "episodes": len(returns),
            "returns": list(returns),
            "acting": acting,
            "seed": 1000 + seed,
        }
        for name, returns in (RETURNS if evaluations is None else evaluations).items()
    }
    teacher = TeacherRecord(
        source="made up", sha256=algo[0].encode().hex() * 32, algo=algo, env_id=env_id,
        num_parameters=1_686_693,
    )  # fmt: skip
    done = {name: PhaseRecord(state="done") for name in PHASES}
    done["distill"] = PhaseRecord.model_validate({"state": "done", **(distilled or {})})
    manifest = Manifest.model_validate(
        {
            "name": path.name, "seed": seed, "versions": {}, "git_commit": commit,
            "git_dirty": None, "platform": "test", "teacher": teacher, "phases": done,
            "evaluations": found,
        }
    )  # fmt: skip
    (path / "manifest.json").write_text(json.dumps(manifest.model_dump(mode="json")))
    return path
