"""What of the Helm charts follows from manifests/ and crds/. `python -m tests.unit.chart` writes it into charts/."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from textwrap import indent
from typing import Final

import yaml
from tests.unit import chart_values

ROOT: Final = Path(__file__).parents[2]
CHART: Final = ROOT / "charts" / "gpupartition"
SCHEMA: Final = ROOT / "charts" / "gpupartition-policies" / "values.schema.json"
MADE: Final = ("admission", "base", "components", "crds", "monitoring")
"""The folders of templates/ that are made; what lies beside them is written by hand."""

NAMESPACE: Final = "gpupartition-system"
LABEL: Final = "app.kubernetes.io/name: gpupartition"
PEOPLES: Final = frozenset({"gpupartition-view", "gpupartition-plan", "gpupartition-operate"})
READS: Final = frozenset({"get", "list", "watch"})
NOT_READ_ONLY: Final = "{{ if not $.Values.readOnly }}"

LEFT_OUT: Final = frozenset({"kustomization.yaml", "namespace.yaml"})
"""The namespace is that of the release, which is there before anything of it."""

SWITCHES: Final = {  # what of a folder, or a file, is rendered between these two
    "crds": ("{{- if .Values.crds }}", "{{- end }}"),
    "components/amd-dcm": ("{{- with .Values.amdDcm }}{{ if .enabled }}", "{{- end }}{{ end }}"),
    "components/driver-namespace": ("{{- range .Values.driverNamespaces }}\n---", "{{- end }}"),
    "components/evict": ("{{- if .Values.evict }}", "{{- end }}"),
    "components/force-delete": ("{{- if .Values.forceDelete }}", "{{- end }}"),
    "components/nvidia-mig": ("{{- with .Values.nvidiaMig }}{{ if .enabled }}", "{{- end }}{{ end }}"),
    "monitoring/dashboard.yaml": ("{{- with .Values.grafana }}{{ if .enabled }}", "{{- end }}{{ end }}"),
    "monitoring/podmonitor.yaml": ("{{- with .Values.prometheus }}{{ if .enabled }}", "{{- end }}{{ end }}"),
    "monitoring/rules.yaml": ("{{- with .Values.prometheus }}{{ if and .enabled .rules }}", "{{- end }}{{ end }}"),
}

KEPT: Final = "  annotations:\n    helm.sh/resource-policy: keep\n"
LABELS: Final = """\
  labels:
    {{- with .labels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
"""
"""By which somebody's Prometheus, or Grafana, selects what it reads."""

DASHBOARD: Final = f"""\
apiVersion: v1
kind: ConfigMap
metadata:
  name: gpupartition-dashboard
  namespace: {{{{ .namespace | default $.Release.Namespace }}}}
{LABELS}\
  {{{{- with .annotations }}}}
  annotations: {{{{- toYaml . | nindent 4 }}}}
  {{{{- end }}}}
data:
  gpupartition.json: |
"""
"""What the kustomization generates around the dashboard."""

EDITS: Final = {  # where a value stands; each of these is found exactly as often as the second number says
    "base/deployment.yaml": {
        "  replicas: 1\n": ("  replicas: {{ .Values.replicas }}\n", 1),
        "    type: Recreate\n": (
            # The numbers too: those that the API server fills in would stay, and be refused, where there is one replica again.
            """\
    {{- if gt (int .Values.replicas) 1 }}
    type: RollingUpdate
    rollingUpdate: {maxSurge: 1, maxUnavailable: 0}
    {{- else }}
    type: Recreate
    {{- end }}
""",
            1,
        ),
        "      serviceAccountName:": (
            """\
      {{- with .Values.imagePullSecrets }}
      imagePullSecrets: {{- toYaml . | nindent 6 }}
      {{- end }}
      {{- with .Values.nodeSelector }}
      nodeSelector: {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with .Values.tolerations }}
      tolerations: {{- toYaml . | nindent 6 }}
      {{- end }}
      serviceAccountName:""",
            1,
        ),
        "image: gpupartition\n": (
            "image: {{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}\n",
            1,
        ),
        '          value: "true"\n': (
            """\
          value: {{ not .Values.readOnly | quote }}
        {{- if .Values.readOnly }}
        - name: GPUPARTITION_READ_ONLY
          value: "true"
        {{- end }}
        {{- range $name, $value := .Values.settings }}
        - name: GPUPARTITION_{{ $name }}
          value: {{ $value | quote }}
        {{- end }}
""",
            1,
        ),
        """\
        resources:
          requests:
            cpu: 100m
            memory: 256Mi
          limits:
            memory: 1Gi
""": ("        resources: {{- toYaml .Values.resources | nindent 10 }}\n", 1),
    },
    "components/driver-namespace/role.yaml": {"namespace: gpu-driver\n": ("namespace: {{ . }}\n", 2)},
    "components/nvidia-mig/role.yaml": {
        "namespace: gpu-operator\n": ("namespace: {{ .namespace }}\n", 2),
        "namespace: dra-driver-nvidia-gpu\n": ("namespace: {{ .pluginNamespace }}\n", 2),
    },
    "components/amd-dcm/role.yaml": {
        "namespace: kube-amd-gpu\n": ("namespace: {{ .namespace }}\n", 2),
        "namespace: k8s-gpu-dra-driver\n": ("namespace: {{ .pluginNamespace }}\n", 2),
    },
    **{
        f"monitoring/{each}.yaml": {f"{NAMESPACE}\nspec:\n": (f"{NAMESPACE}\n{LABELS}spec:\n", 1)}
        for each in ("podmonitor", "rules")
    },
}


def files() -> dict[str, str]:
    """Return the templates by their path below templates/."""
    manifests, crds = ROOT / "manifests", ROOT / "crds"
    paths = [path for folder in MADE for path in sorted((manifests / folder).rglob("*.yaml"))]
    sources = {str(path.relative_to(manifests)): path for path in paths if path.name not in LEFT_OUT}
    sources |= {f"crds/{path.name}": path for path in sorted(crds.glob("*.yaml"))}
    sources |= {"monitoring/dashboard.yaml": manifests / "monitoring/dashboard.json"}
    return {name: template(name, path) for name, path in sources.items()}


def template(name: str, source: Path) -> str:
    """Return one of them. Raises ValueError where the source does not have what a value is to replace."""
    folder = name.rpartition("/")[0]
    text = source.read_text(encoding="utf-8").replace("{{", '{{ "{{" }}')
    if source.suffix == ".json":
        text = DASHBOARD + indent(text, "    ")
    for old, (new, times) in EDITS.get(name, {}).items():
        if text.count(old) != times:
            raise ValueError(f"{source} has {old!r} {text.count(old)} times, not {times}: change EDITS in {__file__}")
        text = text.replace(old, new)
    text = text.replace(NAMESPACE, "{{ $.Release.Namespace }}")
    if folder == "crds":
        text = text.replace("\nmetadata:\n", f"\nmetadata:\n{KEPT}", 1)
    else:
        text = "---\n".join(_narrowed(_labelled(document)) for document in text.split("---\n"))
    begin, end = (f"{line}\n" if line else "" for line in SWITCHES.get(name, SWITCHES.get(folder, ("", ""))))
    made = f"{{{{- /* Made from {source.relative_to(ROOT)} by `make chart`; change it there. */}}}}\n"
    return f"{made}{begin}{text}{end}"


def _labelled(document: str) -> str:
    """Add the label that the kustomizations add."""
    head, _, rest = document.partition("\nmetadata:\n")
    metadata = re.match(r"(?:  .*\n)*", rest)
    assert metadata is not None, document
    if LABEL in metadata[0]:
        return document
    more = rest.replace("  labels:\n", f"  labels:\n    {LABEL}\n", 1)
    return f"{head}\nmetadata:\n" + (more if "  labels:\n" in metadata[0] else f"  labels:\n    {LABEL}\n{rest}")


def _narrowed(document: str) -> str:
    """Take from a role of the operator, where the release is read-only, every verb that writes anything but a status."""
    head, has_rules, rules = document.partition("\nrules:\n")
    name = re.search(r"^  name: (\S+)", document, re.MULTILINE)
    if not has_rules or (name is not None and name[1] in PEOPLES):
        return document
    each = re.findall(r"(?:^#.*\n)*^- .*\n(?:^  .*\n)*", rules, re.MULTILINE)
    assert "".join(each) == rules, document
    return f"{head}\nrules:\n" + "".join(map(_read_only, each))


def _read_only(rule: str) -> str:
    (parsed,) = yaml.safe_load(rule)
    reads, writes = ([v for v in parsed["verbs"] if (v in READS) is reading] for reading in (True, False))
    if not writes or all(resource.endswith("/status") for resource in parsed["resources"]):
        return rule
    if not reads:
        return f"{NOT_READ_ONLY.replace('{{', '{{-')}\n{rule}{{{{- end }}}}\n"
    old = f"[{', '.join([*reads, *writes])}]"
    assert old in rule, "verbs that read come first"
    return rule.replace(old, f"[{', '.join(reads)}{NOT_READ_ONLY}, {', '.join(writes)}{{{{ end }}}}]")


def main() -> None:
    """Write them all, and nothing else into their folders."""
    templates = CHART / "templates"
    for folder in MADE:
        shutil.rmtree(templates / folder, ignore_errors=True)
    for name, text in files().items():
        (templates / name).parent.mkdir(parents=True, exist_ok=True)
        (templates / name).write_text(text, encoding="utf-8")
    SCHEMA.write_text(chart_values.schema(ROOT / "crds"), encoding="utf-8")


if __name__ == "__main__":
    main()
