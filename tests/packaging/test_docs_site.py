"""The documentation site: builds strictly, says everything, and fetches nothing from elsewhere."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from mkdocs.exceptions import PluginError

from docs_build.cli_reference import cli_page, commands
from docs_build.hook import on_page_markdown, render_equations
from docs_build.markdown import find_table, markdown_table, number_text
from docs_build.recipe_reference import recipe_keys, recipe_keys_page, training_keys_page
from docs_build.site_check import broken_links, external_resources, script_addresses
from qpd.recipe.mistakes import all_key_paths
from qpd.recipe.schema import Recipe
from qpd.recipe.shipped import list_recipes
from qpd.recipe.train_schema import TrainRecipe
from qpd.student_files.quantized import stored_constant_bytes

ROOT = Path(__file__).resolve().parents[2]
# What Material's script may load in some pages or browsers, and why it never does here.
NEVER_LOADED = {
    "https://unpkg.com/mermaid@11/dist/mermaid.min.js",  # pages with a mermaid diagram
    "https://unpkg.com/resize-observer-polyfill",  # browsers without ResizeObserver, before 2020
}


def build(config: Path, site: Path) -> subprocess.CompletedProcess[str]:
    """Build as a user does, from another folder."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", str(config)]
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    return subprocess.run(
        [*command, "-d", str(site)],
        capture_output=True,
        text=True,
        cwd=site.parent,
        env=environment | {"NO_MKDOCS_2_WARNING": "1"},
        timeout=300,
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("docs") / "site"
    done = build(ROOT / "mkdocs.yml", folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def text_of(site: Path, page: str) -> str:
    return (site / page).read_text(encoding="utf-8")


def test_every_recipe_key_is_in_the_reference_with_an_anchor(site: Path) -> None:
    page = text_of(site, "reference/recipe-keys.html")
    keys = recipe_keys()
    assert {"distill.lr", "finetune.reward.clip", "name"} <= set(keys)
    # The recipe's own list has the sections too, whose headings are ids without dots.
    ids = {path: (f'id="{path}"', f'id="{path.replace(".", "")}"') for path in all_key_paths()}
    assert [path for path, either in ids.items() if not any(i in page for i in either)] == []
    assert [key for key in keys if f'id="{key}"' not in page] == []


def test_a_key_is_given_with_type_range_default_and_meaning() -> None:
    page = recipe_keys_page()
    (row,) = [line for line in page.splitlines() if "#quantize.first_layer_bits)" in line]
    cells = [cell.strip() for cell in row.split(" | ")]
    assert cells[1:] == [
        "int, ≥\u00a02, ≤\u00a08, or null",
        "`null`",
        "weight bits of the first layer; null = weight_bits |",
    ]
    (row,) = [line for line in page.splitlines() if "#finetune.lr)" in line]
    assert "| float, >\u00a00, ≤\u00a010 | `1e-4` |" in row  # not distill's 1e-3
    (row,) = [line for line in page.splitlines() if "#distill.loss)" in line]
    assert "| `forward_kl`, `reverse_kl` | `forward_kl` |" in row


def test_every_key_and_every_option_says_what_it_means() -> None:
    for page, model in ((recipe_keys_page(), Recipe), (training_keys_page(), TrainRecipe)):
        rows = [line for line in page.splitlines() if line.startswith("| [")]
        assert len(rows) == len(recipe_keys(model))
        assert [row for row in rows if row.endswith("|  |")] == []
    rows = [line for line in cli_page().splitlines() if line.startswith("| `")]
    assert len(rows) > 50
    assert [row for row in rows if row.endswith("|  |")] == []


def test_every_command_and_option_is_in_the_reference(site: Path) -> None:
    page = text_of(site, "reference/cli.html")
    paths = [path for path, _ in commands()]
    assert {"qpd run", "qpd train", "qpd analyze fps"} <= set(paths)
    assert [path for path in paths if f'id="{path.replace(" ", "-")}"' not in page] == []
    for _, command in commands():
        for parameter in command.params:
            if parameter.param_type_name == "option":
                assert all(f"<code>{name}</code>" in page for name in parameter.opts)


def test_the_reference_names_what_help_prints() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "qpd.cli", "bench", "--help"],
        capture_output=True,
        text=True,
        env=os.environ | {"COLUMNS": "300", "PYTHONPATH": str(ROOT)},
    )
    listed = re.findall(r"^  (?:-\w, )?(--[a-z-]+)", done.stdout, re.MULTILINE)
    section = cli_page().split("## qpd bench ")[1].split("\n## ")[0]
    assert len(listed) > 5
    assert [name for name in listed if name != "--help" and f"`{name}`" not in section] == []


def test_every_shipped_recipe_is_listed(site: Path) -> None:
    page = text_of(site, "reference/shipped-recipes.html")
    assert [r.name for r in list_recipes() if f"<code>{r.name}</code>" not in page] == []


def test_links_and_anchors_of_the_site_lead_somewhere(site: Path) -> None:
    assert len(list(site.rglob("*.html"))) > 15
    assert broken_links(site) == []


def test_the_site_fetches_nothing_from_elsewhere(site: Path) -> None:
    assert external_resources(site) == []
    assert script_addresses(site) <= NEVER_LOADED
    pages = [path.read_text(encoding="utf-8") for path in site.rglob("*.html")]
    assert not any('class="mermaid"' in page or "data-md-source" in page for page in pages)


def test_equations_are_mathml_and_none_is_left_as_latex(site: Path) -> None:
    page = text_of(site, "method.html")
    assert page.count('<math xmlns="http://www.w3.org/1998/Math/MathML" display="block">') == 9
    assert "arithmatex" not in page and "\\frac" not in page and "\\(" not in page


def test_pages_quote_the_readme(site: Path) -> None:
    first = find_table((ROOT / "README.md").read_text(), "Breakout, PPO teacher").splitlines()[2]
    cells = [cell.strip() for cell in first.strip("|").split("|")]
    assert all(f"<td>{cell}</td>" in text_of(site, "index.html") for cell in cells)
    assert "<!-- table" not in text_of(site, "index.html")


def test_the_readme_is_short_and_its_results_are_those_of_the_runs() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(readme.split()) <= 800
    rows = find_table(readme, "Breakout, PPO teacher").splitlines()[2:]
    checked = 0
    for row in rows:
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        _, shown, games, size, constants, run, commit = cells
        name = re.match("`(.*?)`", run)
        if name is None:  # the teacher is not a run
            text = (ROOT / "runs-reference/readme/teacher-1000-games.json").read_text()
            played = json.loads(text)["return"]
            low, high = played["interval"]
            assert shown == f"{played['mean']:.1f} [{low:.1f}, {high:.1f}]"
            assert games == f"{len(played['returns']):,}"
            continue
        folder = ROOT / "runs-reference" / name[1]
        manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
        assert manifest["git_commit"][:7] == commit.split(",")[0].strip("`")  # it began there
        student = folder / "quantized.safetensors"
        assert f"{student.stat().st_size:,}" == size
        assert f"{stored_constant_bytes(student):,}" == constants
        played = manifest["evaluations"]["qat"]
        kept = folder.with_name(f"{folder.name}-1000-games.json")
        if games == "1,000" and kept.exists():
            played = json.loads(kept.read_text(encoding="utf-8"))["return"]
        if int(games.replace(",", "")) == len(played["returns"]):
            low, high = played["interval"]
            assert shown == f"{played['mean']:.1f} [{low:.1f}, {high:.1f}]"
            checked += 1
    assert checked == 4 and len(rows) == 5


def test_the_bytes_of_vector_students_are_those_of_the_runs() -> None:
    page = (ROOT / "docs" / "evaluation.md").read_text(encoding="utf-8")
    table = find_table(page.split("## Other games")[1], "teacher")
    stated = [row.strip("| ").split(" | ")[-2:] for row in table.splitlines()[2:]]
    agents = ["ppo-cartpole", "dqn-cartpole", "a2c-acrobot", "ppo-mountaincar", "ppo-lunarlander",
              "dqn-lunarlander", "qrdqn-lunarlander"]  # fmt: skip
    files = [ROOT / f"runs-reference/classic-{agent}/quantized.safetensors" for agent in agents]
    assert stated == [[f"{x.stat().st_size:,}", f"{stored_constant_bytes(x):,}"] for x in files]


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "runs-reference/README.md"])
def test_relative_links_of_the_repository_lead_somewhere(page: str) -> None:
    text = re.sub(r"```.*?```", "", (ROOT / page).read_text(encoding="utf-8"), flags=re.DOTALL)
    links = re.findall(r"\]\(([^)#\s]+)[^)]*\)", text)
    inner = [link for link in links if "://" not in link and not link.startswith("mailto:")]
    assert [link for link in inner if not ((ROOT / page).parent / link).exists()] == []


def test_pages_with_mistakes_do_not_build(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    with (tmp_path / "docs" / "index.md").open("a", encoding="utf-8") as page:
        page.write("\n[a](nowhere.md)\n\n[b](index.md#nowhere)\n")
    config = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    hook = str(ROOT / "docs_build" / "hook.py")
    (tmp_path / "mkdocs.yml").write_text(config.replace("docs_build/hook.py", hook))
    done = build(tmp_path / "mkdocs.yml", tmp_path / "site")
    said = done.stdout + done.stderr
    assert done.returncode != 0
    assert "nowhere.md" in said and "#nowhere" in said and "2 warnings in strict mode" in said


def test_a_quoted_table_that_is_not_there_ends_the_build() -> None:
    line = "<!-- table from README.md: no such header -->"
    with pytest.raises(PluginError, match="no such header"):  # which mkdocs ends with
        on_page_markdown(f"text\n\n{line}\n")


def test_the_checker_sees_what_is_broken_and_what_is_external(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "index.html").write_text(
        '<h1 id="top">x</h1><a href="sub/b.html#here">1</a><a href="sub/b.html#gone">2</a>'
        '<a href="no.html">3</a><a href="https://example.org/">4</a><img src="no.png">'
        '<a href="../out.html">5</a><a href="#top">6</a><a href="/sub/b.html">7</a>'
        '<script src="https://cdn.example/x.js"></script><img srcset="a.png 1x, //b.example/c 2x">'
        '<link rel="stylesheet" href="http://f.example/s.css"><p style="background:url(//d.ex/e)">'
    )
    (tmp_path / "sub" / "b.html").write_text('<a id="here" href="../index.html">back</a>')
    (tmp_path / "s.css").write_text("@import 'https://g.example/i.css'; a{src:url(own.woff2)}")
    broken = [line.split(": ")[1] for line in broken_links(tmp_path)]
    assert broken == ["sub/b.html#gone", "no.html", "no.png", "../out.html"]
    external = "\n".join(external_resources(tmp_path))
    for host in ("cdn.example", "b.example", "f.example", "d.ex", "g.example"):
        assert host in external
    assert "example.org" not in external and "own.woff2" not in external


def test_tables_and_numbers() -> None:
    assert markdown_table(["a", "b"], [["x | y", "1\n2"]]).splitlines()[2] == "| x \\| y | 1 2 |"
    text = "| other | b |\n|---|---|\n\n| one | b |\n|---|---|\n| 1 | 2 |\n\nend"
    assert find_table(text, "one") == "| one | b |\n|---|---|\n| 1 | 2 |"
    with pytest.raises(ValueError, match="'none'"):
        find_table(text, "none")
    shown = [number_text(n) for n in (1, 0.5, 1e-3, 2.5e-4, 4096, 2**31 - 1, 2**30, 99.99, 0.0)]
    bound = "2^31\u00a0-\u00a01"
    assert shown == ["1", "0.5", "1e-3", "2.5e-4", "4096", bound, "2^30", "99.99", "0"]


def test_an_equation_keeps_its_meaning() -> None:
    page = '<p><span class="arithmatex">\\(a &lt; \\frac{1}{2}\\)</span> and \\(code\\)</p>'
    drawn = render_equations(page)
    assert "<mfrac><mrow><mn>1</mn></mrow><mrow><mn>2</mn></mrow></mfrac>" in drawn
    assert "&#x0003C;" in drawn and drawn.endswith(" and \\(code\\)</p>")


def test_contributing_says_where_to_look() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| [^|]+ \| `([\w/]+\.py)` \| ([^|]*) \|$", page, re.M)
    assert len(rows) >= 8
    for file, names in rows:
        text = (ROOT / file).read_text(encoding="utf-8")
        for name in re.findall(r"`(\w+)`", names):
            assert re.search(rf"\b(def|class) {name}\b", text), f"{file} has no {name}"


def test_each_equation_names_its_function() -> None:
    """docs/method.md says where each equation is computed: the function is there, and in use."""
    page = (ROOT / "docs" / "method.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (Eq\. \d|Algorithm 1)[^|]*\| `(\w+)` \| `([\w/.]+)` \|$", page, re.M)
    assert [row[0] for row in rows] == [*(f"Eq. {i}" for i in range(1, 6)), "Algorithm 1"]
    ours = re.findall(r"^\| (Multi\w+|Box)[^|]*\|[^|]*\| `(\w+)` \| `([\w/.]+)` \|$", page, re.M)
    assert [row[0] for row in ours] == ["MultiDiscrete", "MultiBinary", "Box", "Box"]
    for _, function, file in ours:
        assert f"def {function}(" in (ROOT / file).read_text(encoding="utf-8"), (file, function)
    sources = [
        path.read_text(encoding="utf-8")
        for folder in ("qpd", "students")
        for path in (ROOT / folder).rglob("*.py")
    ]
    for equation, function, file in rows:
        text = (ROOT / file).read_text(encoding="utf-8")
        assert f"def {function}(" in text, f"{equation}: {file} has no {function}"
        assert equation == "Algorithm 1" or equation in text, f"{file} does not name {equation}"
        uses = sum(len(re.findall(rf"\b{function}\b", source)) for source in sources)
        assert uses >= 3, f"{function} is defined and imported, but never called"
