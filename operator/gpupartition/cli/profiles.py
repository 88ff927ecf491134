"""`gpupartition profiles [PRODUCT]`: into what GPUs can be cut, as far as this release's tables know. Asks no cluster."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from gpupartition.cli.forms import NAMES, forms
from gpupartition.cli.options import Unusable, add_output, describe, tell
from gpupartition.cli.paint import Line, Span, grid, line

if TYPE_CHECKING:
    from gpupartition.domain.amd_modes import AmdModel
    from gpupartition.domain.mig import GpuModel

    Model = GpuModel | AmdModel

ABOUT: Final = """
Names the GPUs that the tables know, and of one product its MIG profiles (what each takes of the GPU, and the memory slices in which it may
begin) or its compute and memory modes. It asks no cluster: tables of your own, which a driver may name, are not in it.
"""
EXAMPLES: Final = """
examples:
  %(prog)s                                  all GPUs that are known
  %(prog)s H100-80GB                        by the model's name, or a part of it
  %(prog)s "NVIDIA A100-SXM4-40GB"          or as the driver, or a node's label, spells the product
  %(prog)s MI300X -o json                   for programs

exit codes: 0 told; 1 no GPU of that name is known (the message names those that are near); 2 wrong usage
"""


def add_to(parser: argparse.ArgumentParser) -> None:
    """Give the command its options."""
    describe(parser, ABOUT, EXAMPLES)
    parser.add_argument("product", nargs="?", default="", metavar="PRODUCT", help="a product or a model (default: all)")
    add_output(parser, NAMES)


async def run(options: argparse.Namespace) -> int:
    """Look up, print, and return the exit code."""
    return tell("profiles", FORMS[options.output](look_up(options.product)))


def look_up(product: str) -> list[Model]:
    """The models that may be meant: the one of exactly this name, else those of which it is a part. Raises Unusable where there is none."""
    from difflib import get_close_matches

    from gpupartition.domain.amd_modes import model_of
    from gpupartition.domain.products import comparable
    from gpupartition.tables import amd, mig

    models: list[Model] = [*mig.builtin(), *amd.builtin()]
    if not product:
        return models
    wanted = comparable(product)
    called = {model.name: [comparable(name) for name in (model.name, *_products(model))] for model in models}
    exactly = [model for model in models if wanted in called[model.name]]
    of_amd = model_of(product, amd.builtin())
    partly = [model for model in models if any(wanted in name for name in called[model.name])]
    if found := exactly or ([of_amd] if of_amd else partly):
        return found
    spelled = {comparable(name): name for model in models for name in (model.name, *_products(model))}
    near = [spelled[name] for name in get_close_matches(wanted, sorted(spelled), n=3)]
    raise Unusable(
        f"no GPU is known that is called {product}"
        + (f"; near are {', '.join(near)}" if near else "; without a name, all are told")
    )


def _products(model: Model) -> Sequence[str]:
    products: Sequence[str] = getattr(model, "products", ())  # AMD's are recognized by a word
    return products


# ------------------------------------------------------------------------------------------------------------------------ forms


def pictured(found: Sequence[Model], _: datetime) -> Iterator[Line]:
    """For people: one model in full, several by what there is of each."""
    if len(found) == 1:
        yield from _in_full(found[0])
        return
    rows = [
        (Span(model.name, "bold"), _vendor(model), ", ".join(_names(model)), ", ".join(_products(model)))
        for model in found
    ]
    yield from grid(("MODEL", "VENDOR", "PROFILES OR MODES", "PRODUCTS"), rows)


def _in_full(model: Model) -> Iterator[Line]:
    from gpupartition.domain.mig import GpuModel

    if not isinstance(model, GpuModel):
        yield line(Span(model.name, "bold"), " (AMD): modes, as a policy names them")
        yield ()
        yield from grid(
            ("MODE", "PARTITIONS", "TRUST"),
            [(m.mode.told, str(m.partitions), str(m.trust)) for m in model.modes if m.mode.settable],
        )
        return
    yield line(
        Span(model.name, "bold"),
        f" (NVIDIA {model.architecture}): {model.memory_slices} memory slices",
        _compute(model),
    )
    yield line(Span(", ".join(model.products), "dim"))
    yield ()
    rows = [
        (
            p.name,
            str(p.slices),
            str(p.size),
            f"{p.memory} MiB" if p.memory else "",
            str(p.most),
            " ".join(map(str, p.starts)),
        )
        for p in model.profiles
    ]
    yield from grid(("PROFILE", "COMPUTE", "SLICES", "MEMORY", "AT MOST", "BEGINS AT"), rows)


def _compute(model: GpuModel) -> str:
    return f", {max(p.slices for p in model.profiles)} compute slices"


def as_data(found: Sequence[Model]) -> dict[str, Any]:
    """Everything, in names that stay."""
    return {"models": [_data(model) for model in found]}


def _data(model: Model) -> dict[str, Any]:
    from gpupartition.domain.mig import GpuModel

    if not isinstance(model, GpuModel):
        modes = [
            {"mode": m.mode.told, "partitions": m.partitions, "trust": str(m.trust)}
            for m in model.modes
            if m.mode.settable
        ]
        return {"model": model.name, "vendor": "AMD", "modes": modes}
    profiles = [
        {
            "profile": p.name,
            "computeSlices": p.slices,
            "memorySlices": p.size,
            "memoryMib": p.memory,
            "most": p.most,
            "starts": list(p.starts),
            "engines": dict(p.engines),
        }
        for p in model.profiles
    ]
    return {
        "model": model.name,
        "vendor": "NVIDIA",
        "architecture": model.architecture,
        "products": list(model.products),
        "memorySlices": model.memory_slices,
        "profiles": profiles,
    }


def names(found: Sequence[Model]) -> list[str]:
    """The profiles or modes of one model, as a policy names them; of several, the models."""
    return _names(found[0]) if len(found) == 1 else [model.name for model in found]


def _names(model: Model) -> list[str]:
    from gpupartition.domain.mig import GpuModel

    return (
        [p.name for p in model.profiles]
        if isinstance(model, GpuModel)
        else [m.mode.told for m in model.modes if m.mode.settable]
    )


def _vendor(model: Model) -> str:
    return "NVIDIA" if hasattr(model, "profiles") else "AMD"


FORMS: Final = forms(picture=pictured, data=as_data, names=names)
