"""The GPUs of one vendor in a machine, between what its Node says of them and what the programs on it do to them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from testbed.drivers.gpus import BadGpusError

log = logging.getLogger(__name__)

G = TypeVar("G")


@dataclass(slots=True, kw_only=True)
class Hardware(Generic[G]):
    """As they are now. The functions are the vendor's: what a state says, after a boot; how it is told; what a reboot leaves."""

    read: Callable[[str, str, str], tuple[G, ...]]
    write: Callable[[Sequence[G], str, str], str]
    rebooted: Callable[[Sequence[G]], tuple[G, ...]]
    gpus: tuple[G, ...] = ()
    _seen: bool = False
    _boot: str = ""
    _spec: str = ""
    _told: str = ""
    _own: list[str] = field(default_factory=list)  # states that were written and have not been seen yet

    def see(self, node: str, boot: str, spec: str, state: str) -> None:
        """Take what the Node says: other GPUs, another boot, or a state that somebody else wrote."""
        if own := state in self._own:
            del self._own[: self._own.index(state) + 1]
        changed_by_hand = not own and state != self._told
        self._told = state
        try:
            if not self._seen or changed_by_hand or spec != self._spec:
                self.gpus = self.read(state, boot, spec)
            elif boot != self._boot:
                self.gpus = self.rebooted(self.gpus)
        except BadGpusError as problem:
            log.error("node %s, ignored: %s", node, problem)  # noqa: TRY400
        self._boot, self._spec, self._seen = boot, spec, True

    def change(self, changed: tuple[G, ...]) -> str | None:
        """Have these from now on; returns what is to be told of them, None if nothing has changed."""
        if changed == self.gpus:
            return None
        self.gpus = changed
        told = self.write(changed, self._boot, self._spec)
        self._own.append(told)
        return told
