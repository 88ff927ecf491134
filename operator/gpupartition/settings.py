"""What can be set from outside, all by environment variables, each with its unit in its name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import timedelta

from gpupartition import names
from gpupartition.domain.world import Limits

PREFIX = "GPUPARTITION_"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The operator's settings.

    Every time limit of `Limits` is `GPUPARTITION_<NAME>_SECONDS`, for example `GPUPARTITION_DRAINING_WAIT_SECONDS=7200`.
    """

    namespace: str = names.OPERATOR_NAMESPACE  # GPUPARTITION_NAMESPACE: where the freeze ConfigMap is looked for
    port: int = 8080  # GPUPARTITION_PORT: /healthz, /readyz, /metrics; 0 chooses a free one and logs it
    host: str = "0.0.0.0"  # noqa: S104  GPUPARTITION_HOST: probes come from outside the pod
    workers: int = 4  # GPUPARTITION_WORKERS: nodes looked at at the same time
    resync: timedelta = timedelta(
        seconds=300
    )  # GPUPARTITION_RESYNC_SECONDS: everything is looked at again, whatever happened
    summary: timedelta = timedelta(
        seconds=5
    )  # GPUPARTITION_SUMMARY_SECONDS: counts in a status move at most this often
    ignore_not_ready: timedelta = timedelta(seconds=3600)  # GPUPARTITION_IGNORE_NOT_READY_SECONDS
    limits: Limits = field(default_factory=Limits)

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> Settings:
        """Read the settings; raises ValueError with every variable that is unknown or has no usable value."""
        given = {k.removeprefix(PREFIX): v for k, v in environ.items() if k.startswith(PREFIX)}
        problems: list[str] = []
        plain = {k: given.pop(k) for k in ("NAMESPACE", "PORT", "HOST", "WORKERS") if k in given}
        seconds: dict[str, timedelta] = {}
        known = {f.name for f in fields(Limits)} | {"resync", "summary", "ignore_not_ready"}
        for key, text in given.items():
            name = key.removesuffix("_SECONDS").lower()
            if not key.endswith("_SECONDS") or name not in known:
                if key not in {"CACHE", "KUBECONFIG"}:  # belong to the testbed
                    problems.append(f"{PREFIX}{key} is unknown")
                continue
            try:
                seconds[name] = timedelta(seconds=float(text))
            except (ValueError, OverflowError):
                problems.append(f"{PREFIX}{key}={text!r} is not a number of seconds, such as 90 or 0.5")
                continue
            if seconds[name] < timedelta(0):
                problems.append(f"{PREFIX}{key}={text!r} is negative; write 0 or more")
        problems += [
            f"{PREFIX}{key}={plain[key]!r} is not a whole number"
            for key in ("PORT", "WORKERS")
            if key in plain and not plain[key].isdecimal()
        ]
        if problems:
            raise ValueError("; ".join(sorted(problems)))
        defaults = cls()
        return cls(
            namespace=plain.get("NAMESPACE", defaults.namespace),
            port=int(plain.get("PORT", defaults.port)),
            host=plain.get("HOST", defaults.host),
            workers=max(1, int(plain.get("WORKERS", defaults.workers))),
            resync=seconds.pop("resync", defaults.resync),
            summary=seconds.pop("summary", defaults.summary),
            ignore_not_ready=seconds.pop("ignore_not_ready", defaults.ignore_not_ready),
            limits=Limits(**seconds),
        )
