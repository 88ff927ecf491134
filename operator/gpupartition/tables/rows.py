"""What the tables of GPUs have in common: a row is taken as it is written, or refused with the field and what to write there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from gpupartition.domain.problem import Problem, Refused
from gpupartition.domain.wording import path_of

Text = Annotated[str, Field(min_length=1, max_length=512)]
Forms = Mapping[str, tuple[str, str]]
"""By pattern: what has this form, and what to write."""


class Row(BaseModel):
    """Strict: a "7" in JSON is not 7, and yes in YAML is not 1. A validator's complaint is what is wrong, a semicolon, and what to do."""

    model_config = ConfigDict(alias_generator=to_camel, extra="forbid", frozen=True, strict=True)


R = TypeVar("R", bound=Row)


def read(table: type[R], document: Any, at: str, forms: Forms) -> R:
    """A table of this shape, given as read from JSON or YAML. `at` says where it stands. Raises Refused with all that is wrong."""
    try:
        return table.model_validate(document)
    except ValidationError as error:
        raise Refused(*(_misread(table, e, at, forms) for e in error.errors())) from error


def invalid(at: str, path: str, why: str, fix: str) -> Problem:
    """The refusal of the table that stands there, for what it has at this path."""
    return Problem(reason="TableInvalid", at=f"{at}: {path}", why=why, fix=fix)


def _misread(table: type[Row], error: Mapping[str, Any], at: str, forms: Forms) -> Problem:
    loc = [part for part in error["loc"] if part != "[key]"]
    path = path_of(loc) or "table"
    given, said = repr(error["input"])[:80], str(error["msg"]).replace("Input", "it", 1)
    match error["type"]:
        case "missing":
            return invalid(at, path, "it is missing", "add it")
        case "extra_forbidden":
            return invalid(
                at, path, "there is no such field", f"leave it out, or use one of {_fields(table, loc[:-1])}"
            )
        case "model_type":
            return invalid(at, path, f"{given} is not a mapping", f"write one with the fields {_fields(table, loc)}")
        case "string_pattern_mismatch":
            what, fix = forms[error["ctx"]["pattern"]]
            return invalid(at, path, f"{given} is not {what}", fix)
        case "value_error":
            why, _, fix = str(error["ctx"]["error"]).partition("; ")
            return invalid(at, path, why, fix)
        case _:
            return invalid(at, path, f"{given} cannot be", said[0].lower() + said[1:])


def _fields(row: type[Row], path: Sequence[int | str]) -> str:
    """The fields of the row at this path: (), (gpus, 0) or (gpus, 0, profiles, 0)."""
    for part in path:
        if isinstance(part, str):
            rows = get_args(row.model_fields[part].annotation)
            row = next(each for each in rows if issubclass(each, Row))
    return ", ".join(field.alias or name for name, field in row.model_fields.items())
