"""The rules that the API server checks by itself, in CEL: what is refused without looking at the cluster, and what to write instead.

Kubernetes runs every rule of an object, so that a user sees all problems at once; a rule that compares two values is therefore silent
where one of them is refused anyway. The dialect is that of Kubernetes 1.34 and later (libraries `format`, `quantity`, `lists`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final


@dataclass(frozen=True, slots=True)
class Rule:
    """One `x-kubernetes-validations` entry: what must be true, else what is said, and at which field below `self` (`.equal`).

    `says` is a text, or with `computed` a CEL expression that yields one.
    """

    cel: str
    says: str
    at: str = ""
    computed: bool = False

    def schema(self) -> dict[str, str]:
        """Return the entry as the CRD has it."""
        message = "messageExpression" if self.computed else "message"
        return {"rule": self.cel, message: self.says} | ({"fieldPath": self.at} if self.at else {})


def checks(*rules: Rule) -> dict[str, Any]:
    """Rules as an addition to a field's or a model's JSON schema."""
    return {"x-kubernetes-validations": [rule.schema() for rule in rules]}


def keyed(field: str) -> dict[str, Any]:
    """Make a list a map by this field: unique, and merged item by item by server-side apply."""
    return {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [field]}


def member(kind: str, name: str, example: str) -> Rule:
    """Build the rule that member `name` of a union is set with type `kind`, and with no other."""
    return Rule(
        f"(self.type == '{kind}') == has(self.{name})",
        f"self.type == '{kind}' ? 'type {kind} says how in {name}: write {name}: {example}' "
        f": '{name} belongs to type {kind}: remove it, or write type: {kind} instead of ' + self.type",
        at=f".{name}",
        computed=True,
    )


def fixed(why: str) -> Rule:
    """Build the rule that a value never changes."""
    return Rule("self == oldSelf", f"cannot be changed: {why}")


PERCENTAGE: Final = "^([1-9][0-9]?|100)%$"

NODE_COUNT: Final = Rule(
    f"type(self) == int ? self >= 1 : self.matches('{PERCENTAGE}')",
    'write a number of nodes, at least 1, or a percentage from "1%" to "100%"; to stop, use rollout.paused: true',
)

FAILURE_COUNT: Final = Rule(
    f"type(self) == int ? self >= 0 : self.matches('{PERCENTAGE}')",
    'write a number of nodes, 0 or more, or a percentage from "1%" to "100%"; to halt at the first failure, write 0',
)

START: Final = Rule(
    "self.matches('^([01][0-9]|2[0-3]):[0-5][0-9]$')",
    'write a time of the day with hours and minutes, from "00:00" to "23:59", in quotes',
)

END: Final = Rule(
    "self.matches('^(([01][0-9]|2[0-3]):[0-5][0-9]|24:00)$')",
    'write a time of the day with hours and minutes, from "00:00" to "24:00", in quotes',
)

TIME_ZONE: Final = Rule(
    "self.matches('^[A-Za-z][A-Za-z0-9_+-]*(/[A-Za-z0-9_+-]+)*$')",
    "is no name of a time zone: write UTC, or area and city, such as Europe/Berlin",
)

WINDOW: Final = Rule(
    "self.start != self.end",
    'ends when it begins: write another end, or for the whole day start: "00:00" and end: "24:00"',
    at=".end",
)

ROLLOUT: Final = (
    Rule(
        "!(has(self.onFailure) && self.onFailure == 'Continue') "
        "|| (has(self.maxFailed) && !(type(self.maxFailed) == int && self.maxFailed == 0))",
        "Continue goes on after a failure, and maxFailed: 0 halts at the first: write maxFailed: 1 or more, or onFailure: RollBack",
        at=".onFailure",
    ),
    Rule(
        "!has(self.progressDeadlineSeconds) || self.progressDeadlineSeconds == 0 || !has(self.minReadySeconds) "
        "|| self.progressDeadlineSeconds > self.minReadySeconds",
        "would be over before any node can be ready: write more than minReadySeconds, or 0 for never",
        at=".progressDeadlineSeconds",
    ),
)

QUANTITY: Final = Rule(
    "isQuantity(self) && quantity(self).isGreaterThan(quantity('0'))",
    "write a positive quantity of Kubernetes, such as 40Gi, 500M or 7",
)

# What a change of the partitions itself moves. A policy that selected by such a label would lose its nodes midway, or never get them.
_MOVED = (
    "({0} in ['nvidia.com/gpu.product', 'nvidia.com/gpu.count', 'nvidia.com/gpu.memory', 'nvidia.com/gpu.replicas', 'gpupartition.dev/layout'] "
    "|| {0}.startsWith('nvidia.com/mig') || {0}.startsWith('dcm.amd.com/'))"
)
_MOVES = "is changed by repartitioning itself: select the nodes by a label that stays, such as one of your own"
_BAD_KEY = "is no label key: write name or prefix/name, of letters, digits, dashes, underscores and dots, such as example.com/pool"
_BAD_VALUE = "is no label value: write at most 63 letters, digits, dashes, underscores and dots, beginning and ending with a letter or a digit"


def _key_ok(key: str) -> str:
    return f"!format.qualifiedName().validate({key}).hasValue()"


LABEL_KEY: Final = Rule(_key_ok("self"), _BAD_KEY)
LABEL_VALUE: Final = Rule("!format.labelValue().validate(self).hasValue()", _BAD_VALUE)

MATCH_LABELS: Final = (
    Rule(
        f"!self.exists(k, {_MOVED.format('k')})",
        f"self.filter(k, {_MOVED.format('k')})[0] + ' {_MOVES}'",
        computed=True,
    ),
    Rule(f"self.all(k, {_key_ok('k')})", f"self.filter(k, !({_key_ok('k')}))[0] + ' {_BAD_KEY}'", computed=True),
)

LABEL_KEYS: Final = MATCH_LABELS[1]

REQUIREMENT: Final = (
    Rule(f"!{_MOVED.format('self.key')}", f"self.key + ' {_MOVES}'", at=".key", computed=True),
    Rule(
        "(self.operator in ['In', 'NotIn']) == (has(self.values) && size(self.values) > 0)",
        "self.operator in ['In', 'NotIn'] ? 'operator ' + self.operator + ' compares with values: list at least one' "
        ": 'operator ' + self.operator + ' takes no values: remove them, or write operator: In'",
        at=".values",
        computed=True,
    ),
)

# An empty selector means every node to Kubernetes, and client-side apply turns `matchLabels:` (null) into one.
NODE_SELECTOR: Final = Rule(
    "(has(self.matchLabels) && size(self.matchLabels) > 0) || (has(self.matchExpressions) && size(self.matchExpressions) > 0)",
    "would select every node: write at least one entry of matchLabels or matchExpressions, such as matchLabels: {pool: inference}",
)

# An empty selector means every pod to Kubernetes: whoever lost its content on the way must not have evictions switched off, or on, by that.
POD_SELECTOR: Final = Rule(
    NODE_SELECTOR.cel,
    "selects no pod in particular: write at least one entry of matchLabels or matchExpressions, such as matchLabels: {kind: training}",
)


def _of_evict(field: str, used: str) -> Rule:
    return Rule(
        f"!(has(self.{field}) && {used}) || (has(self.mode) && self.mode == 'Evict')",
        "is about evictions, and only mode: Evict evicts: write mode: Evict, or remove this",
        at=f".{field}",
    )


DRAIN: Final = (
    _of_evict("onTimeout", "self.onTimeout == 'ForceDelete'"),
    _of_evict("gracePeriodSeconds", "true"),
    _of_evict("deleteEmptyDir", "self.deleteEmptyDir"),
    _of_evict("force", "self.force"),
    _of_evict("waitForCompletion", "true"),
)

_ALL = "(has({0}.all) && {0}.all)"
_LISTS = "((has(self.products) && size(self.products) > 0) || (has(self.indexes) && size(self.indexes) > 0))"
MATCH: Final = (
    Rule(f"{_ALL.format('self')} || {_LISTS}", "matches no GPU: write all: true, or list products or indexes"),
    Rule(
        f"!({_ALL.format('self')} && {_LISTS})",
        "all: true already takes every GPU: remove products and indexes, or remove all",
        at=".all",
    ),
)

LAYOUTS: Final = Rule(
    f"self.filter(l, {_ALL.format('l.match')}).size() <= (self.size() > 0 && {_ALL.format('self[self.size() - 1].match')} ? 1 : 0)",
    "the first layout that matches a GPU wins, so nothing after match: {all: true} is ever used: only the last layout can have it",
)

UNIQUE: Final = Rule("self.all(x, self.exists_one(y, y == x))", "lists something twice: remove what is there already")

PRESET_ALONE: Final = Rule(
    "!self.exists(p, p.name.startsWith('all-')) || (self.size() == 1 && (!has(self[0].count) || self[0].count == 1))",
    "a preset (all-...) says how all of the GPU is cut: write it alone and without count, or name the profiles",
)

SHARING: Final = Rule(
    "!has(self.capacity) || size(self.capacity) == 0 || (has(self.mode) && self.mode == 'Shared')",
    "only a shared device has capacity to ask for: write mode: Shared, or remove capacity",
    at=".capacity",
)


def _in_order(low: str, high: str) -> Rule:
    both = f"has(self.{low}) && has(self.{high}) && isQuantity(self.{low}) && isQuantity(self.{high})"
    return Rule(
        f"!({both}) || quantity(self.{low}).compareTo(quantity(self.{high})) <= 0",
        f"{low} is more than {high}: write a smaller {low}, or a larger {high}",
        at=f".{low}",
    )


SHARING_CAPACITY: Final = (
    Rule(
        "has(self.default)",
        "says not what a claim gets that does not ask: write default, at least min",
        at=".default",
    ),
    Rule(
        "has(self.min) || !(has(self.max) || has(self.step))",
        "max and step count from min: write min too",
        at=".min",
    ),
    _in_order("min", "default"),
    _in_order("default", "max"),
    _in_order("min", "max"),
)

CAPACITY_NAMES: Final = Rule(
    "self.all(k, k.matches('^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z_][A-Za-z0-9_]{0,31}$'))",
    "name a capacity as ResourceSlices do: at most 32 letters, digits and underscores, such as memory, or with a domain: example.com/memory",
)

INVENTORY: Final = Rule(
    "has(self.nodeLabels) != (has(self.gpus) && size(self.gpus) > 0)",
    "has(self.nodeLabels) ? 'says twice where the GPUs are known from: keep either nodeLabels or gpus' "
    ": 'says nowhere which GPUs a node has: write nodeLabels (the names of the labels that say it) or gpus (the same on every node)'",
    computed=True,
)

MULTI_NODE: Final = (
    Rule(
        "has(self.multiNode) == has(oldSelf.multiNode) && (!has(self.multiNode) || self.multiNode.groupLabel == oldSelf.multiNode.groupLabel)",
        "cannot be changed: which nodes share a pool is in the names of pools; make another GpuPartitionDriver for other groups",
        at=".multiNode",
    ),
    Rule(
        "!has(self.multiNode) || !has(self.live) || self.live",
        "nodes of a group are changed under their users: write live: true, or leave it out",
        at=".live",
    ),
)

QUIESCE_OF_GROUPS: Final = Rule(
    "!has(self.publish) || !has(self.publish.multiNode) || !has(self.quiesce) || self.quiesce in ['Auto', 'DeviceTaint']",
    "a cordon closes one node, and a pool of several is changed at once: write Auto or DeviceTaint",
    at=".quiesce",
)

COUNTER_NAMES: Final = Rule(
    "self.all(k, !format.dns1123Label().validate(k).hasValue())",
    "name a counter with at most 63 lower-case letters, digits and dashes, such as memory or slices",
)

COUNTERS_KNOWN: Final = Rule(
    "!has(self.profiles) || self.profiles.all(p, p.placements.all(q, "
    "q.counters.all(c, has(self.counters) ? c in self.counters : c == 'memory')))",
    "a placement takes from a counter that the GPU does not have: add it to counters (without counters a GPU has one, memory)",
    at=".profiles",
)

NAME_FITS_LABEL: Final = Rule(
    "self.metadata.name.size() <= 63",
    "the name is used as the value of a label: write at most 63 characters",
)
