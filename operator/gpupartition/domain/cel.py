"""CEL as the API server has it: the language through a library, and here what Kubernetes adds to it, as far as rules and selectors use that.

Kubernetes' libraries `quantity`, `format`, `semver`, and optionals: https://kubernetes.io/docs/reference/using-api/cel/. What is not here is
refused when it is asked, never taken for true.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final

from celpy import Environment, Runner
from celpy.adapter import json_to_cel
from celpy.celparser import CELParseError
from celpy.celtypes import BoolType, DoubleType, IntType, ListType, StringType
from celpy.evaluation import CELEvalError

from gpupartition.domain.quantity import exact

_DNS_LABEL: Final = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_NAME: Final = "[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_FORMS: Final = {  # k8s.io/apimachinery/pkg/util/validation: what each matches, and how long it may be
    "labelValue": (f"^({_NAME})?$", 63),
    "dns1123Label": (f"^{_DNS_LABEL}$", 63),
    "qualifiedName": (rf"^({_DNS_LABEL}(\.{_DNS_LABEL})*/)?{_NAME}$", 317),
}


@lru_cache(maxsize=256)
def function(text: str) -> Callable[[Any], Any]:
    """The expression as a function of `self`. Raises ValueError for what is no CEL; the function does for what cannot be asked."""
    compiled = program(text, _FUNCTIONS)

    def ask(value: Any) -> Any:
        try:
            return compiled.evaluate({"self": json_to_cel(value), "format": StringType("format")})
        except CELEvalError as error:
            raise ValueError(f"{text!r} cannot be asked of {value!r}: {error}") from None

    return ask


def program(text: str, functions: Mapping[str, Any], prepare: Callable[[Any], None] = lambda _: None) -> Runner:
    """What can be evaluated again and again, once `prepare` has changed the tree. Raises ValueError for what is no CEL."""
    environment = Environment()
    try:
        tree = environment.compile(text)
        prepare(tree)
        return environment.program(tree, functions=dict(functions))
    except CELParseError as error:
        raise ValueError(f"no CEL: {text!r}: {error}") from None


def matches(text: str, pattern: str) -> bool:
    """Whether the pattern is found in the text, by the rules of RE2. Raises ValueError for a pattern that is none."""
    return bool(function("self.text.matches(self.pattern)")({"text": text, "pattern": pattern}))


def _is_quantity(text: str) -> BoolType:
    try:
        exact(text)
    except ValueError:
        return BoolType(False)
    return BoolType(True)


def _validate(form: str, text: str) -> ListType:
    """An optional list of complaints, here as a list that is empty when there is none."""
    pattern, longest = _FORMS[form]
    return ListType([] if len(text) <= longest and matches(text, pattern) else [StringType("it has another form")])


QUANTITIES: Final[Mapping[str, Any]] = {
    "quantity": exact,
    "isQuantity": _is_quantity,
    "isGreaterThan": lambda a, b: BoolType(a > b),
    "isLessThan": lambda a, b: BoolType(a < b),
    "compareTo": lambda a, b: IntType((a > b) - (a < b)),
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "sign": lambda a: IntType((a > 0) - (a < 0)),
    "isInteger": lambda a: BoolType(a.denominator == 1),
    "asInteger": lambda a: IntType(a) if a.denominator == 1 else CELEvalError("not an integer", ValueError, None),
    "asApproximateFloat": lambda a: DoubleType(float(a)),
}

_FUNCTIONS: Final[dict[str, Any]] = {
    **QUANTITIES,
    **{form: lambda _, form=form: StringType(form) for form in _FORMS},
    "validate": _validate,
    "hasValue": lambda optional: BoolType(len(optional) > 0),
}
