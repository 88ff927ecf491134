"""Files with drivers and policies: what is in them, and every mistake in them, with its place and what to write instead."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator
from operator import itemgetter
from pathlib import Path

import pytest
import yaml
from tests.e2e import api_examples
from tests.e2e.api_examples import EXAMPLES
from tests.unit.fleet import driver, policy

from gpupartition.api import crd
from gpupartition.cli.documents import read
from gpupartition.cli.offline import KINDS, refused
from gpupartition.cli.options import ERROR, Unusable, complain
from gpupartition.domain.yaml_text import LONGEST
from gpupartition.kube import Object


def written_to(folder: Path, *bodies: object) -> str:
    path = folder / "policy.yaml"
    path.write_text(yaml.safe_dump_all(bodies))
    return str(path)


def mistakes(folder: Path, *bodies: object) -> list[str]:
    with pytest.raises(Unusable, match=r"\w") as unusable:
        read([written_to(folder, *bodies)])
    return [line.replace(f"{folder}/", "") for line in unusable.value.lines]


def changed(**spec: object) -> Object:
    body = policy()
    return {**body, "spec": {**body["spec"], **spec}}


def test_several_documents_in_one_file_are_all_read(tmp_path: Path) -> None:
    found = read([written_to(tmp_path, driver(), None, policy("one"), policy("two"))])
    assert [(d.kind, d.name) for d in found] == [
        ("GpuPartitionDriver", "example"),
        ("GpuPartitionPolicy", "one"),
        ("GpuPartitionPolicy", "two"),
    ]


def test_what_kubectl_prints_can_be_piped_in() -> None:
    text = yaml.safe_dump({"apiVersion": "v1", "kind": "List", "items": [policy("one")]})
    assert [d.name for d in read(["-"], io.BytesIO(text.encode()))] == ["one"]


def test_every_mistake_is_told_not_only_the_first(tmp_path: Path) -> None:
    assert mistakes(tmp_path, changed(mode="Look", rollout={"limit": True}), {**policy(), "kind": "GpuPolicy"}) == [
        'policy.yaml, document 1 (line 1): GpuPartitionPolicy inference: spec.mode: write Enforce or Observe (it is "Look")',
        "policy.yaml, document 1 (line 1): GpuPartitionPolicy inference: spec.rollout.limit: write a whole number, or a text (it is true)",
        "policy.yaml, document 2 (line 20): kind GpuPolicy is none of GpuPartitionDriver, GpuPartitionPolicy",
    ]


def test_what_stands_beside_a_policy_is_passed_over_and_counted(capsys: pytest.CaptureFixture[str]) -> None:
    others = [{"apiVersion": "apps/v1", "kind": "Deployment"}, {"apiVersion": "v1", "kind": "ConfigMap"}] * 2
    record = {"apiVersion": "gpupartition.dev/v1alpha1", "kind": "GpuPartitionNodeState"}
    text = yaml.safe_dump_all([*others, policy("one"), record])
    assert [d.name for d in read(["-"], io.BytesIO(text.encode()))] == ["one"]
    told = "passed over, as nothing is planned for it: 2 ConfigMap, 2 Deployment, 1 GpuPartitionNodeState\n"
    assert capsys.readouterr().err == told


def test_files_with_other_kinds_alone_are_refused(tmp_path: Path) -> None:
    (line,) = mistakes(tmp_path, {"apiVersion": "v1", "kind": "ConfigMap"})
    assert line == "policy.yaml: no GpuPartitionPolicy and no GpuPartitionDriver in there, but 1 ConfigMap"


@pytest.mark.parametrize("example", EXAMPLES["accepted"], ids=itemgetter("title"))
def test_what_the_api_server_takes_is_taken(example: Object, tmp_path: Path) -> None:
    (document,) = read([written_to(tmp_path, api_examples.written(example))])
    assert document.name == api_examples.named(example["title"])


# Words of the API server's own, in whose place there are others here; what is said must be said of the same field.
OWN = re.compile(r"in body|Required value|[Ss]upported value|Duplicate value|Too (many|long)|Invalid value: 0$")


@pytest.mark.parametrize("example", EXAMPLES["refused"], ids=itemgetter("title"))
def test_what_the_api_server_refuses_is_refused_at_the_same_place_and_by_rules_with_the_same_words(
    example: Object, tmp_path: Path
) -> None:
    told, said = mistakes(tmp_path, api_examples.written(example)), example["says"]
    if place := re.match(r"(spec[^: ]*)(: | in body)", said):
        assert any(f": {place[1]}" in line for line in told), told
    if not OWN.search(said):
        words = re.sub(r'^("[^"]*"|-?[0-9]+): ', "", said.split("Invalid value: ")[-1])
        assert any(words in line for line in told), told


def test_each_rule_refuses_an_example(tmp_path: Path) -> None:
    """So that none is read here that the API server has never been asked about."""
    told = [line for example in EXAMPLES["refused"] for line in mistakes(tmp_path, api_examples.written(example))]
    for rule in rules():
        words = [rule["message"]] if "message" in rule else re.findall(r"'([^']{20,})'", rule["messageExpression"])
        assert any(word in line for word in words for line in told), rule


def rules() -> Iterator[dict[str, str]]:
    """Those of what people write, but for those of changes, and that of the name, which no example has."""
    for kind in KINDS.values():
        left = [crd.crd(kind)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]]
        while left:
            schema = left.pop()
            yield from (r for r in schema.get("x-kubernetes-validations", ()) if "oldSelf" not in r["rule"])
            left += schema.get("properties", {}).values()
            left += [schema[inner] for inner in ("items", "additionalProperties") if inner in schema]


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (changed(rollout={"limit": "0%"}), 'spec.rollout.limit: write a number of nodes, at least 1, or a percentage'),
        (changed(layouts=[{"name": "a", "match": {}, "type": "Whole"}]), "spec.layouts[0].match: matches no GPU"),
        (changed(rollout={"limit": 10**20}), "spec.rollout.limit: write a whole number, or a text"),
        (changed(rollout={"limit": float("inf")}), "spec.rollout.limit: write a whole number, or a text"),
        (changed(layout=[]), "spec.layout: there is no such field; write deletionPolicy, driver, layouts, mode, nodeSelector or rollout"),
        (changed(nodeSelector=None), "spec.nodeSelector: is missing: Which nodes"),
        ({**policy(), "specs": {}}, "GpuPartitionPolicy inference: specs: there is no such field"),
        ({**policy(), "metadata": {"name": "n" * 64}}, "the name is used as the value of a label: write at most 63 characters"),
        ({**policy(), "metadata": {"name": "In Ference"}}, "metadata.name: has to match"),
        ({**policy(), "metadata": {"name": "inference\n"}}, "metadata.name: has to match"),
        ({**policy(), "metadata": {"name": "a", "annotations": {"b": 1}}}, "metadata.annotations[b]: write a text, in quotes (it is 1)"),
        ("text", "no Kubernetes object: it has no kind"),
        ({**policy(), "apiVersion": "gpupartition.dev/v9"}, "write gpupartition.dev/v1alpha1"),
        ({**policy(), "metadata": {}}, "metadata.name: is missing"),
        ({**driver(), "metadata": None}, "GpuPartitionDriver: metadata: is missing"),
    ],
)  # fmt: skip
def test_a_mistake_is_told_with_its_place_and_what_to_write(tmp_path: Path, body: object, says: str) -> None:
    (line,) = mistakes(tmp_path, body)
    assert line.startswith("policy.yaml: ")
    assert says in line


def test_the_same_object_twice_is_a_mistake(tmp_path: Path) -> None:
    (line,) = mistakes(tmp_path, policy("one"), policy("one"))
    assert line == (
        "policy.yaml, document 2 (line 18): GpuPartitionPolicy one is in policy.yaml, document 1 (line 1) already; keep one of them"
    )


HEAD = "apiVersion: gpupartition.dev/v1alpha1\nkind: GpuPartitionPolicy\n"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: [", r"policy\.yaml, line 2: not YAML: "),
        ("", "no GpuPartitionPolicy"),
        (f"{HEAD}spec: &all {{a: *all}}", "line 3: &all contains itself; write what is meant in full"),
        (f"{HEAD}spec: {{}}\nspec: {{}}", "line 4: the key spec is there already; keep one of them"),
    ],
)
def test_a_file_without_usable_text_is_named(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(text)
    with pytest.raises(Unusable, match=says):
        read([str(path)])


def test_yaml_is_read_as_kubectl_reads_it(tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").write_text(
        yaml.safe_dump(changed(mode=None)).removesuffix("  rollout: {}\n")
        + "  rollout: {pauseBetweenSeconds: 60.0, windows: [{start: 22:00, end: 06:00}]}\n"
        + "status: {observedGeneration: never}\n"
    )
    (found,) = read([str(tmp_path / "policy.yaml")])
    window = {"start": "22:00", "end": "06:00"}
    assert found.body["spec"]["rollout"] == {"pauseBetweenSeconds": 60, "windows": [window]}
    assert "mode" not in found.body["spec"]


def test_what_cannot_be_read_does_not_hide_mistakes_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "broken.yaml").write_text("a: 1\nb: [\n")
    wrong = written_to(tmp_path, changed(mode="Look"))
    with pytest.raises(Unusable) as unusable:
        read([str(tmp_path / "broken.yaml"), wrong])
    first, second = unusable.value.lines
    assert "broken.yaml, line 3: not YAML: " in first
    assert "policy.yaml: GpuPartitionPolicy inference: spec.mode" in second


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"a: 1\nb: \xff\n", "no UTF-8 text in line 2; name a file"),
        (b"#" * (LONGEST + 1), "more than 8 MiB, most of which can be nothing that is planned; name a file"),
    ],
)
def test_a_file_that_is_no_text_or_too_large_is_told_in_a_line(tmp_path: Path, content: bytes, says: str) -> None:
    (tmp_path / "policy.yaml").write_bytes(content)
    with pytest.raises(Unusable, match=says):
        read([str(tmp_path / "policy.yaml")])


def test_what_never_ends_is_not_read_to_its_end() -> None:
    with pytest.raises(Unusable, match="more than 8 MiB"):
        read(["/dev/zero"])


def test_a_closed_stdin_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", None)
    with pytest.raises(Unusable, match="stdin: it is closed; name a file"):
        read(["-"])


@pytest.mark.parametrize(
    ("body", "at"),
    [
        (changed(layouts=[{}] * 1_000_000), "spec.layouts: list at most 16"),
        (changed(nodeSelector={"matchLabels": dict.fromkeys(map(str, range(100_000)), 1)}), "write at most 32 entries"),
        (changed(driver="a" * 1_000_000 + "!"), "spec.driver: write at most 253 characters"),
    ],
)
def test_what_is_too_long_is_not_gone_through(body: Object, at: str) -> None:
    (line,) = refused(body)
    assert at in ": ".join(line)
    assert len(": ".join(line)) < 200


def test_of_many_mistakes_a_hundred_are_told(tmp_path: Path) -> None:
    nonsense = {f"field{n}": n for n in range(1000)}
    told = mistakes(tmp_path, *[{**policy(f"p{n}"), **nonsense} for n in range(3)])
    assert len(told) == 101
    assert told[-1] == "and 200 mistakes more"


def test_what_others_wrote_moves_no_cursor(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "policy.yaml").write_text('kind: "\\e[2J\\x9b\\a"\napiVersion: gpupartition.dev/v1alpha1\n')
    with pytest.raises(Unusable) as unusable:
        read([str(tmp_path / "policy.yaml")])
    assert complain(*unusable.value.lines) == ERROR
    assert r"kind \x1b[2J\x9b\x07 is none of" in capsys.readouterr().err


def test_of_a_folder_those_files_are_read_that_kubectl_apply_takes(tmp_path: Path) -> None:
    (tmp_path / "deeper").mkdir()
    for place in ("b.yaml", "a.yml", "c.json", "notes.md", "deeper/d.yaml"):
        body = policy(place.replace("/", "-").replace(".", "-"))
        (tmp_path / place).write_text(json.dumps(body))
    assert [each.name for each in read([str(tmp_path)])] == ["a-yml", "b-yaml", "c-json"]
    (tmp_path / "empty").mkdir()
    with pytest.raises(Unusable, match="empty: no GpuPartitionPolicy and no GpuPartitionDriver in there"):
        read([str(tmp_path / "empty")])


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(Unusable, match=r"nowhere\.yaml: No such file"):
        read([str(tmp_path / "nowhere.yaml")])
