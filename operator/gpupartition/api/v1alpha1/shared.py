"""What the kinds have in common: their base, the forms of texts and numbers, and what is said of nodes in more than one of them."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic.alias_generators import to_camel

from gpupartition.api import rules
from gpupartition.api.rules import checks


class Model(BaseModel):
    """Base of every model here: camelCase on the wire, frozen, unknown fields refused, fields described by the text below them."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        extra="forbid",
        frozen=True,
        use_attribute_docstrings=True,
    )


class Told(Model):
    """Base of what the operator itself writes. Fields of a later release are kept as they are, so that going back to this one loses none."""

    model_config = ConfigDict(extra="allow")


def cut(limit: int) -> BeforeValidator:
    """Shorten a text that people read: what happened must reach them, even where it is longer than the field."""
    return BeforeValidator(
        lambda text: text[: limit - 1] + "…" if isinstance(text, str) and len(text) > limit else text
    )


YEARS: Final = range(1970, 9000)
# An API server takes more for a date-time than that: the year 0, a zone of 99 hours, any character in front of the fraction.
TIME: Final = r"^(19[7-9]|[2-8]\d\d)\d-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]([01]\d|2[0-3]):[0-5]\d)$"


def _within_reach(time: datetime) -> datetime:
    """Refuse a time to which nothing can be added, or from which nothing can be taken."""
    if time.year not in YEARS:
        raise ValueError(f"nobody wrote this in the year {time.year}")
    return time


Time = Annotated[datetime, AfterValidator(_within_reach), Field(json_schema_extra={"pattern": TIME})]
Name = Annotated[str, Field(min_length=1, max_length=63, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")]
SUBDOMAIN = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"
Subdomain = Annotated[str, Field(min_length=1, max_length=253, pattern=SUBDOMAIN)]
Quantity = Annotated[str, Field(min_length=1, max_length=32, json_schema_extra=checks(rules.QUANTITY))]
LabelKey = Annotated[str, Field(min_length=1, max_length=317)]
LabelValue = Annotated[str, Field(max_length=63)]
CheckedLabelKey = Annotated[LabelKey, Field(json_schema_extra=checks(rules.LABEL_KEY))]
CheckedLabelValue = Annotated[LabelValue, Field(json_schema_extra=checks(rules.LABEL_VALUE))]
ProfileName = Annotated[str, Field(min_length=1, max_length=40)]
Product = Annotated[str, Field(min_length=1, max_length=63)]
CounterName = Annotated[str, Field(min_length=1, max_length=63)]
CapacityName = Annotated[str, Field(min_length=1, max_length=96)]


def _counted(count: int | str) -> int | str:
    """Refuse a text that is no percentage, as the rules below do: another CRD may have let it in, and it is computed with."""
    if isinstance(count, str) and not re.fullmatch(rules.PERCENTAGE, count):
        raise ValueError('write a number of nodes, or a percentage from "1%" to "100%"')
    return count


_Count = Annotated[int | str, AfterValidator(_counted)]
NodeCount = Annotated[_Count, Field(json_schema_extra=checks(rules.NODE_COUNT))]  # 3, or "10%" of the matching nodes
FailureCount = Annotated[_Count, Field(json_schema_extra=checks(rules.FAILURE_COUNT))]  # 0, 3, or "10%" of them

# What the operator writes: bounded like everything else, never refused for its form.
NodeName = Annotated[str, Field(max_length=253)]
Uid = Annotated[str, Field(max_length=128)]
Hash = Annotated[str, Field(max_length=64)]
Reference = Annotated[str, Field(max_length=512)]
_WORD: Final = r"[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?"
Reason = Annotated[str, Field(max_length=128, pattern=rf"^({_WORD})?$")]  # conditions take it over
Message = Annotated[str, cut(4096), Field(max_length=4096)]


class Condition(Told):
    """metav1.Condition."""

    type: Annotated[str, Field(min_length=1, max_length=316, pattern=r"^[A-Za-z0-9]([-A-Za-z0-9_./]*[A-Za-z0-9])?$")]
    """What is true or not, such as Ready."""
    status: Literal["True", "False", "Unknown"]
    """Whether it is."""
    reason: Annotated[str, Field(min_length=1, max_length=128, pattern=rf"^{_WORD}$")]
    """Why, in one word for programs."""
    message: Message = ""
    """Why, for people: what is wrong, where, and what to do next."""
    observed_generation: int | None = None
    """The metadata.generation that this was said of."""
    last_transition_time: Time
    """When status changed last."""


class Blocker(Told):
    """Who keeps a node from being repartitioned."""

    node: NodeName
    """The node."""
    claim: Reference = ""
    """The ResourceClaim, as namespace/name."""
    pod: Reference = ""
    """The pod that uses the claim, as namespace/name."""
    pdb: Reference = ""
    """The PodDisruptionBudgets that do not allow its eviction, as namespace/name."""
    device: Reference = ""
    """The device that is held."""
    reason: Reason = ""
    """What kind of holder it is."""
    since: Time | None = None
    """Since when it has been in the way."""
