"""The table of MIG profiles: mig.json beside this module, and entries of the same form that an administrator adds.

A table is for planning: what a GPU really has is what its driver publishes. Memory and the sizes in names change a little with the driver's
release, so profiles are compared by shape (domain.mig.same_shape).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.resources import files
from typing import Annotated, Any, Final, Literal

from pydantic import Field

from gpupartition.domain import mig
from gpupartition.domain.mig import GpuModel
from gpupartition.domain.mig_layouts import Counts, more_ways_than, told, why_not
from gpupartition.domain.problem import Refused
from gpupartition.domain.products import comparable
from gpupartition.tables.rows import Forms, Row, Text, invalid, read

MAX_SLICES: Final = 16  # hardware has up to 12 memory slices; each doubles what a search may have to look at
MAX_WAYS: Final = 2_000  # counts that fit on one GPU, all looked through for what fits instead; hardware has up to 128

Engine = Literal["multiprocessors", "copy-engines", "decoders", "encoders", "jpeg-engines", "ofa-engines"]
Amount = Annotated[int, Field(ge=1, le=MAX_SLICES)]
_FORMS: Final[Forms] = {
    mig.PROFILE_NAME: ("the name of a profile", "write it as the driver prints it, such as 1g.10gb+me"),
    mig.PCI_ID: ("a device with its vendor", "write both in one, such as 0x233010DE"),
}


class ProfileRow(Row):
    """One line of `nvidia-smi mig -lgip`, with its line of `-lgipp`."""

    name: Annotated[str, Field(pattern=mig.PROFILE_NAME, max_length=32)]
    """As the driver prints it after MIG, such as 1g.10gb+me."""
    id: Annotated[int, Field(ge=0, le=255)]
    """The column ID; another profile on another GPU may have the same."""
    slices: Amount
    """Compute slices."""
    size: Amount
    """Memory slices: the number after the colon of -lgipp."""
    starts: Annotated[list[Annotated[int, Field(ge=0, lt=MAX_SLICES)]], Field(min_length=1, max_length=MAX_SLICES)]
    """Where it may begin, counted in memory slices: the numbers in braces of -lgipp."""
    max: Amount
    """Instances total."""
    memory_mib: Annotated[int, Field(ge=1)] | None = None
    """Memory in MiB; left out where it is not known."""
    engines: dict[Engine, Annotated[int, Field(ge=1, le=4096)]] = {}
    """Counters of the driver that it takes from. A counter that no profile of a GPU names is not known, and limits nothing."""

    def profile(self) -> mig.Profile:
        """As the domain knows it."""
        return mig.Profile(
            name=self.name,
            gi_profile_id=self.id,
            slices=self.slices,
            size=self.size,
            starts=tuple(self.starts),
            most=self.max,
            memory=self.memory_mib,
            engines=tuple(self.engines.items()),
        )


class GpuRow(Row):
    """GPUs that are cut alike."""

    name: Annotated[str, Field(min_length=1, max_length=63)]
    """What messages call it."""
    products: Annotated[list[Annotated[str, Field(min_length=1, max_length=128)]], Field(min_length=1, max_length=32)]
    """The names that the driver has for it."""
    architecture: Text
    """Such as Hopper."""
    memory_slices: Amount
    """Into how many its memory is cut: the size of the whole GPU in -lgipp."""
    pci_ids: Annotated[list[Annotated[str, Field(pattern=mig.PCI_ID)]], Field(max_length=32)] = []
    """Device and vendor, as mig-parted's device-filter has them: 0x233010DE. Left out where they are not known."""
    confidence: Literal["high", "medium", "low"] = "medium"
    """High: all numbers that are there were printed by such a GPU, but for what the note says."""
    sources: Annotated[list[Text], Field(max_length=16)] = []
    """Where the numbers are from."""
    note: Annotated[str, Field(max_length=512)] = ""
    """What is not known, or not sure."""
    balanced: dict[str, Amount] = {}
    """What mig-parted's preset all-balanced is on it; left out where there is none."""
    profiles: Annotated[list[ProfileRow], Field(min_length=1, max_length=32)]
    """All of them, the whole GPU too, smallest first."""

    def model(self) -> GpuModel:
        """As the domain knows it."""
        return GpuModel(
            name=self.name,
            products=tuple(self.products),
            pci_ids=frozenset(map(str.upper, self.pci_ids)),
            architecture=self.architecture,
            memory_slices=self.memory_slices,
            profiles=tuple(row.profile() for row in self.profiles),
            balanced=tuple(self.balanced.items()),
        )


class Table(Row):
    """The document."""

    gpus: Annotated[list[GpuRow], Field(max_length=64)]
    """One entry for all GPUs that are cut alike."""


@cache
def builtin() -> tuple[GpuModel, ...]:
    """The GPUs that this release knows. That they do not contradict themselves a test sees to: to look takes a tenth of a second."""
    text = files(__package__).joinpath("mig.json").read_text(encoding="utf-8")
    return tuple(row.model() for row in Table.model_validate_json(text).gpus)


def parse(document: Any, at: str) -> tuple[GpuModel, ...]:
    """The GPUs of a table, which is given as read from JSON or YAML. `at` says where it stands. Raises Refused with all that is wrong."""
    table = read(Table, document, at, _FORMS)
    problems = [invalid(at, *found) for found in _contradictions(table)]
    if problems:
        raise Refused(*problems)
    return tuple(row.model() for row in table.gpus)


# ---------------------------------------------------------------------------------------------------------------- what is refused

Found = tuple[str, str, str]  # field, what is wrong, what to do


def _contradictions(table: Table) -> Iterator[Found]:
    yield from _twice("gpus[{}].name", [(row.name, (n,)) for n, row in enumerate(table.gpus)])
    products = [(comparable(p), (n, k)) for n, row in enumerate(table.gpus) for k, p in enumerate(row.products)]
    yield from _twice("gpus[{}].products[{}]", products)
    for number, row in enumerate(table.gpus):
        at = f"gpus[{number}]"
        found = [*_of_profiles(row, f"{at}.profiles")]
        yield from found
        if not found:  # only then is a search worth anything
            yield from _of_layouts(row, at)


def _twice(path: str, names: Sequence[tuple[Any, tuple[int, ...]]]) -> Iterator[Found]:
    times = Counter(name for name, _ in names)
    seen: set[Any] = set()
    for name, numbers in names:
        if times[name] > 1 and name in seen:
            yield path.format(*numbers), f"{name} is there before", "name each once"
        seen.add(name)


def _of_profiles(row: GpuRow, at: str) -> Iterator[Found]:
    yield from _twice(f"{at}[{{}}].id", [(p.id, (n,)) for n, p in enumerate(row.profiles)])
    for number, profile in enumerate(row.profiles):
        path = f"{at}[{number}]"
        same = next((p.name for p in row.profiles[:number] if mig.same_shape(p.name, profile.name)), None)
        if same is not None:
            yield f"{path}.name", f"{profile.name} cannot be told from {same}", "leave one out"
        if profile.starts != sorted(set(profile.starts)):
            yield f"{path}.starts", f"{profile.starts} are not in order", f"write {sorted(set(profile.starts))}"
        if max(profile.starts) + profile.size > row.memory_slices:
            yield (
                f"{path}.starts",
                f"{profile.size} memory slices from {max(profile.starts)} on end behind the last of {row.memory_slices}",
                f"begin at {row.memory_slices - profile.size} or before"
                if profile.size <= row.memory_slices
                else "correct size",
            )
    if all(profile.size < row.memory_slices for profile in row.profiles):
        yield (
            at,
            f"no profile takes all {row.memory_slices} memory slices, so that it is not known what the whole GPU has",
            "add it",
        )


def _of_layouts(row: GpuRow, at: str) -> Iterator[Found]:
    model = row.model()
    for number, profile in enumerate(row.profiles):
        if why := why_not(model, {profile.name: profile.max}):
            yield (
                f"{at}.profiles[{number}].max",
                f"it is {profile.max}, but {why}",
                "correct max, or what contradicts it",
            )
    balanced: Counts = row.balanced
    if balanced and (why := why_not(model, balanced)):
        yield f"{at}.balanced", f"{told(balanced)} cannot be: {why}", "correct it, or leave it out"
    if more_ways_than(model, MAX_WAYS):
        yield (
            f"{at}.profiles",
            f"they can be combined in more than {MAX_WAYS} ways, too many to look through",
            "leave out profiles that nobody uses",
        )
