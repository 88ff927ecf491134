"""CEL as the API server has it: the language through a library, and here what Kubernetes adds to it, as far as api/rules.py uses that.

Kubernetes' libraries `quantity` and `format`: https://kubernetes.io/docs/reference/using-api/cel/. What is not here is refused when it is
asked, never taken for true.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final

from celpy import Environment
from celpy.adapter import json_to_cel
from celpy.celparser import CELParseError
from celpy.celtypes import BoolType, IntType, ListType, StringType
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
    environment = Environment()
    try:
        program = environment.program(environment.compile(text), functions=_FUNCTIONS)
    except CELParseError as error:
        raise ValueError(f"no CEL: {text!r}: {error}") from None

    def ask(value: Any) -> Any:
        try:
            return program.evaluate({"self": json_to_cel(value), "format": StringType("format")})
        except CELEvalError as error:
            raise ValueError(f"{text!r} cannot be asked of {value!r}: {error}") from None

    return ask


def matches(text: str, pattern: str) -> bool:
    """Whether the pattern is found in the text, by the rules of RE2."""
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


_FUNCTIONS: Final[dict[str, Any]] = {
    "quantity": exact,
    "isQuantity": _is_quantity,
    "isGreaterThan": lambda a, b: BoolType(a > b),
    "compareTo": lambda a, b: IntType((a > b) - (a < b)),
    **{form: lambda _, form=form: StringType(form) for form in _FORMS},
    "validate": _validate,
    "hasValue": lambda optional: BoolType(len(optional) > 0),
}
