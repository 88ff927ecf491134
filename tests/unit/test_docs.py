"""Pages are held to what they speak of: the code, the files, the commands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from tests.e2e import rights
from tests.unit import phase_table
from tests.unit.pages import blocks

from gpupartition import names
from gpupartition.__main__ import COMMANDS, main
from gpupartition.api import crd
from gpupartition.cli import documents, offline
from gpupartition.names import GROUP
from gpupartition.tables import mig

ROOT = Path(__file__).parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]
README = (ROOT / "README.md").read_text(encoding="utf-8")
TARGETS = set(re.findall(r"^([a-z][a-z0-9-]*):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))


def test_the_architecture_page_shows_the_phase_table_as_it_is() -> None:
    page = phase_table.PAGE.read_text(encoding="utf-8")
    assert phase_table.BEGIN in page, f"{phase_table.PAGE} has no {phase_table.BEGIN} … {phase_table.END} for the table"
    assert phase_table.written(page) == page, "run `python -m tests.unit.phase_table`, then look at what has changed"


UNTOLD = {"domain/objects.py", "domain/wording.py"}  # words, and no answer to any question


def test_the_architecture_page_names_each_module_and_none_that_is_not_there() -> None:
    named = set(re.findall(r"([\w/]+\.py)", phase_table.PAGE.read_text(encoding="utf-8")))
    source = ROOT / "operator/gpupartition"
    modules = {str(file.relative_to(source)) for file in source.rglob("*.py") if not file.stem.startswith("__")}
    told = {module for module in modules if {module, module.rpartition("/")[2]} & named}
    short = {module.rpartition("/")[2] for module in modules}
    assert {name for name in named - short if not ((source / name).exists() or (ROOT / name).exists())} == set()
    assert modules - told == {f"cli/{command}.py" for command in COMMANDS} - told | UNTOLD


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    targets = [t for t in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text) if "://" not in t]
    assert [t for t in targets if not (page.parent / t).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_into_a_page_lead_to_one_of_its_headings(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    links = [t for t in re.findall(r"\]\(([^)\s]*#[^)\s]+)\)", text) if "://" not in t]
    pages = {t: (page.parent / t.split("#")[0] if t.split("#")[0] else page) for t in links}
    assert [t for t, target in pages.items() if t.split("#")[1] not in anchors(target)] == []


def anchors(page: Path) -> set[str]:
    """What headings are called in links, as GitHub calls them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", each.lower()).strip().replace(" ", "-") for each in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_that_a_page_names_is_there(page: Path) -> None:
    named = set(re.findall(r"(?:^|`)make ([a-z][a-z0-9-]*)", page.read_text(encoding="utf-8"), re.MULTILINE))
    assert named - TARGETS == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_and_folders_in_code_type_exist(page: Path) -> None:
    roots = ("manifests", "testbed", "tests", "docs", "crds", "charts", "operator")
    named = set(re.findall(rf"`((?:{'|'.join(roots)})/[\w./-]+)`", page.read_text(encoding="utf-8")))
    assert sorted(n for n in named if not (ROOT / n).exists()) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_a_page_shows_of_ours_is_understood_and_refused_by_no_rule(page: Path) -> None:
    shown = [body for text in blocks(page.read_text(encoding="utf-8"), "yaml") for body in yaml.safe_load_all(text)]
    ours = [body for body in shown if str(body.get("apiVersion", "")).startswith(GROUP)]
    for body in ours:
        assert list(offline.refused(body)) == [], body
    assert ours or page.name not in {"README.md", "guide.md"}


def test_the_table_of_products_that_the_page_about_mig_shows_is_one() -> None:
    table = blocks((ROOT / "docs/mig.md").read_text(encoding="utf-8"), "yaml")[-1]
    (model,) = mig.parse(yaml.safe_load(table), at="the page")
    assert (model.name, len(model.profiles)) == ("Q900", 3)


def test_every_name_that_others_rely_on_is_explained() -> None:
    page = (ROOT / "docs/reference.md").read_text(encoding="utf-8")
    ours = {value for value in vars(names).values() if isinstance(value, str) and value.startswith(f"{GROUP}/")}
    assert len(ours) > 20
    assert sorted(name for name in ours - {names.API_VERSION} if f"`{name}`" not in page) == []


def test_what_the_page_about_adoption_prints_is_taken_as_it_is(tmp_path: Path) -> None:
    (printed,) = blocks((ROOT / "docs/adopt.md").read_text(encoding="utf-8"), "yaml")
    (tmp_path / "gpus.yaml").write_text(printed)
    assert len(documents.read([str(tmp_path / "gpus.yaml")])) == 2


@pytest.mark.parametrize("command", ["plan", "simulate", "adopt"])
def test_options_that_the_page_about_a_command_names_are_its_own(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main([command, "--help"])
    told = set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", capsys.readouterr().out))
    page = (ROOT / f"docs/{command}.md").read_text(encoding="utf-8").replace("python -m", "python")
    lines = [line for line in page.splitlines() if "kubectl" not in line]
    assert set(re.findall(r"(?<=[ `])--?[a-z][a-z-]*(?=[ =`])", "\n".join(lines))) <= told


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_options_of_the_plugin_that_a_page_names_are_those_of_the_command(
    page: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written: dict[str, set[str]] = {}
    for command, rest in re.findall(r"kubectl gpp ([a-z]+)([^`|#\n]*)", page.read_text(encoding="utf-8")):
        written.setdefault(command, set()).update(re.findall(r"(?<= )--?[a-z][a-z-]*", rest))
    if page.name == "kubectl.md":
        assert written.keys() == COMMANDS.keys() - {"run"}
    for command, options in written.items():
        with pytest.raises(SystemExit):
            main([command, "--help"])
        assert options <= set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", capsys.readouterr().out)), command


def test_the_page_about_kubectl_shows_the_profiles_as_they_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    shown = [
        each
        for each in blocks((ROOT / "docs/kubectl.md").read_text(encoding="utf-8"), "console")
        if "gpp profiles" in each
    ]
    for each in shown:
        command, _, told = each.partition("\n")
        assert main(command.split()[3:]) == 0
        assert capsys.readouterr().out == told
    assert shown


def test_the_readme_prints_the_columns_that_kubectl_prints() -> None:
    shown = {tuple(line.split()) for line in README.splitlines() if line.startswith("NAME ")}
    columns = {kind.plural: ("NAME", *(c.name.upper() for c in kind.columns if not c.wide)) for kind in crd.KINDS}
    assert shown <= set(columns.values()), columns
    assert len(shown) == 2


def test_the_page_about_security_names_the_rights_of_the_operator_and_no_others() -> None:
    page = (ROOT / "docs/security.md").read_text(encoding="utf-8")
    rows = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `")]
    named = {
        (resource, verb)
        for row in rows
        for resources, verbs in re.findall(r"((?:`[\w./]+`(?:, )?)+): ([a-z, ]+)", row)
        for resource in re.findall(r"`([\w./]+)`", resources)
        for verb in verbs.replace(",", " ").split()
    }
    assert named == {(right.resource.removeprefix("/"), right.verb) for right in rights.given()}
