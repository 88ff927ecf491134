"""GPUs by name: a policy may call them by product, or by the model that a table knows, and is told of names that no GPU has."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from gpupartition.api.v1alpha1 import Layout, Match
from gpupartition.domain.backend import Config
from gpupartition.domain.problem import Problem
from gpupartition.domain.wording import few

if TYPE_CHECKING:
    from gpupartition.domain.amd_modes import AmdModel
    from gpupartition.domain.mig import GpuModel

_SOME: Final = 5  # as many products as a sentence has room for


@dataclass(frozen=True, slots=True)
class Product:
    """What a GPU is sold as, and the model that this is ("": none that is known)."""

    name: str
    model: str = ""

    def __str__(self) -> str:
        return f"{self.name} (model {self.model})" if self.model else self.name

    @classmethod
    def of(cls, name: str, model: GpuModel | AmdModel | None) -> Product:
        """The same, from what a table knows it as."""
        return cls(name, model.name if model is not None else "")

    def is_called(self, name: str) -> bool:
        """Whether a policy may call it so."""
        return comparable(name) in {comparable(own) for own in (self.name, self.model) if own}


@lru_cache(maxsize=4096)
def comparable(product: str) -> str:
    """A product as it is compared: "NVIDIA A100-SXM4-40GB" and the label NVIDIA-A100-SXM4-40GB-MIG-1g.5gb are one."""
    return plain_product(re.sub(r"[\s_-]+", "-", product.strip())).casefold().removeprefix("nvidia-")


def plain_product(product: str) -> str:
    """The product without what GPU feature discovery appends while the GPU is cut or shared: those change with the layout."""
    return product.partition("-MIG-")[0].removesuffix("-SHARED")


def means(match: Match, product: Product, number: int) -> bool:
    """Whether a layout is for the GPU of this product and number."""
    of_product = not match.products or any(product.is_called(name) for name in match.products)
    return match.all or (of_product and (not match.indexes or number in match.indexes))


def unmatched(layouts: Sequence[Layout], products: Collection[Product]) -> frozenset[str]:
    """The names in these layouts that none of the products has."""
    named = {name for layout in layouts for name in layout.match.products}
    return frozenset(name for name in named if not any(product.is_called(name) for product in products))


def nothing_cut(layouts: Sequence[Layout], products: Collection[Product]) -> Problem:
    """The refusal of a policy that would leave a whole node as it is."""
    strangers = unmatched(layouts, products)
    why = "every GPU of a node is left as it is"
    fix = "write a layout of another type for some of its GPUs, or select other nodes"
    if not strangers:
        return Problem(reason="NothingToCut", at="spec.layouts", why=why, fix=fix)
    return Problem(
        reason="NothingToCut",
        at="spec.layouts",
        why=f"{why}: none is called {_some(strangers)}, as match.products says; there are {_some(map(str, set(products)))}",
        fix="write one of these, or select other nodes",
    )


def hint(configs: Iterable[Config]) -> str:
    """What to say of names that no GPU of a policy's nodes has; "" when there are none. `configs`: what is wanted for the nodes."""
    found = list({id(config): config for config in configs}.values())
    strangers = frozenset.intersection(*(config.unmatched for config in found)) if found else frozenset()
    if not strangers:
        return ""
    present = {product for config in found for product in config.products}
    return f"no GPU of its nodes is called {_some(strangers)}, as match.products says: there are {_some(present)}"


def _some(names: Iterable[str]) -> str:
    return few(sorted(names), _SOME)
