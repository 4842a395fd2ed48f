"""Report sections: the recipe, where the run came from, and where its time went."""

from __future__ import annotations

from qpd.analysis.report.blocks import Block, Facts, Folded, Section, Table
from qpd.analysis.report.inputs import ReportInputs
from qpd.analysis.runs.student_bits import bit_columns, run_architecture


def recipe_section(inputs: ReportInputs) -> Section:
    """Show the resolved recipe, folded."""
    recipe = inputs.run.recipe
    bits = bit_columns(recipe, run_architecture(inputs.run))
    facts = [
        ("name", recipe.name),
        ("student", recipe.student.size or "as the recipe says"),
        ("phase 1", f"{recipe.distill.epochs} epochs, {recipe.distill.loss}"),
        ("phase 2", f"{recipe.quantize.scheme}, bits per weight {bits['layer_bits']}"),
        ("phase 3", f"{recipe.finetune.epochs} epochs"),
    ]
    folded = Folded("recipe.yaml: every setting, resolved", recipe.to_yaml())
    return Section("recipe", "Recipe", [Facts(facts), folded])


def provenance_section(inputs: ReportInputs) -> Section:
    """List versions, commit, teacher and seeds, and the time spent on each part."""
    manifest = inputs.run.manifest
    assert manifest.teacher is not None
    commit = manifest.git_commit or "unknown: QPD was installed from a package"
    if manifest.git_dirty:
        commit += ", with uncommitted changes"
    # A set, as policies of one run usually play the same games; evaluations by hand may add seeds.
    seeds = sorted({e["seed"] for e in manifest.evaluations.values() if "seed" in e})
    facts = [
        ("run", inputs.summary["name"]),
        *[("recipe", manifest.name)] * manifest.has_recipe,
        ("environment", manifest.teacher.env_id),
        ("teacher", f"{manifest.teacher.source} ({manifest.teacher.algo})"),
        ("teacher's sha256", manifest.teacher.sha256),
        ("seed", str(manifest.seed)),
        ("evaluation seed", ", ".join(map(str, seeds)) or "not evaluated"),
        ("commit", commit),
        ("platform", manifest.platform),
        ("versions", ", ".join(f"{name} {version}" for name, version in manifest.versions.items())),
        (
            "phases",
            ", ".join(f"{name} {state}" for name, state in inputs.summary["phases"].items()),
        ),
    ]
    blocks: list[Block] = [Facts(facts)]
    seconds = inputs.summary["seconds"]
    total = sum(seconds.values())
    if total > 0:
        rows = [[part, f"{spent:,.0f}", f"{spent / total:.0%}"] for part, spent in seconds.items()]
        rows.append(["total", f"{total:,.0f}", "100%"])
        table = Table(["part", "seconds", "share"], rows, "Time spent", last_is_total=True)
        blocks.append(table)
    return Section("provenance", "Provenance", blocks)
