"""`gpupartition completion SHELL`: a script by which a shell, or kubectl, completes commands, options, and names of policies and nodes."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from gpupartition.cli.candidates import NODES, POLICIES, candidates, told
from gpupartition.cli.options import describe, tell

if TYPE_CHECKING:
    from gpupartition.kube import Kind

ABOUT: Final = """
Prints a script for a shell. kubectl completes its plugins by itself, where its own completion is on and the program kubectl_complete-gpp is
beside kubectl-gpp, as pipx and pip put it: then no script is needed.
"""
EXAMPLES: Final = """
examples:
  source <(%(prog)s bash)                                 for this shell
  %(prog)s zsh > "${fpath[1]}/_gpupartition"              for good
  %(prog)s fish > ~/.config/fish/completions/gpupartition.fish

exit codes: 0 printed; 2 wrong usage
"""
PATIENCE: Final = 1.5  # seconds for the names of a cluster: who presses a key does not wait for longer
MOST: Final = 1000  # names of a kind

BASH: Final = """\
_gpupartition() {
    local line="${COMP_LINE:0:COMP_POINT}" word candidate
    local -a words found
    read -r -a words <<< "$line"
    [[ $line == *[[:space:]] ]] && words+=("")
    word="${words[${#words[@]}-1]}"
    mapfile -t found < <("${words[0]}" __complete "${words[@]:1}" 2> /dev/null)
    COMPREPLY=()
    (( ${#found[@]} )) || return
    [[ ${found[-1]} == ":0" ]] && compopt -o default 2> /dev/null
    unset "found[-1]"
    for candidate in "${found[@]}"; do
        candidate="${candidate%%$'\\t'*}"
        # bash has cut the word at the sign already.
        [[ $word == *=* && $COMP_WORDBREAKS == *=* ]] && candidate="${candidate#*=}"
        COMPREPLY+=("$candidate")
    done
}
complete -F _gpupartition gpupartition kubectl-gpp
"""
ZSH: Final = """\
#compdef gpupartition kubectl-gpp
_gpupartition() {
    local -a found shown
    local candidate directive
    found=("${(@f)$("${words[1]}" __complete "${(@)words[2,CURRENT]}" 2> /dev/null)}")
    directive="${found[-1]}"
    for candidate in "${(@)found[1,-2]}"; do
        if [[ $candidate == *$'\\t'* ]]; then
            shown+=("${${candidate%%$'\\t'*}//:/\\\\:}:${candidate#*$'\\t'}")
        else
            shown+=("${candidate//:/\\\\:}")
        fi
    done
    (( ${#shown} )) && _describe -V gpupartition shown
    [[ $directive == ":0" ]] && _files
}
if [[ $zsh_eval_context[-1] == loadautofunc ]]; then _gpupartition "$@"; else compdef _gpupartition gpupartition kubectl-gpp; fi
"""
FISH: Final = """\
function __gpupartition_complete
    set -l words (commandline -opc) (commandline -ct)
    set -l found ($words[1] __complete $words[2..-1] 2> /dev/null)
    if test "$found[-1]" = ":0"
        __fish_complete_path (commandline -ct)
    else if set -q found[2]
        printf '%s\\n' $found[1..-2]
    end
end
complete -c gpupartition -f -a '(__gpupartition_complete)'
complete -c kubectl-gpp -f -a '(__gpupartition_complete)'
"""
SHELLS: Final = {"bash": BASH, "zsh": ZSH, "fish": FISH}


def add_to(parser: argparse.ArgumentParser) -> None:
    """Give the command its options."""
    describe(parser, ABOUT, EXAMPLES)
    parser.add_argument("shell", choices=sorted(SHELLS), metavar="SHELL", help="bash, fish or zsh")


async def run(options: argparse.Namespace) -> int:
    """Print, and return the exit code."""
    return tell("script", SHELLS[options.shell].rstrip("\n"))


def complete(
    words: Sequence[str], commands: Mapping[str, str], parser_of: Callable[[str], argparse.ArgumentParser]
) -> int:
    """Print what may stand in the place of the last word, of these commands, each with what it is for; returns the exit code."""
    return tell("candidates", told(*candidates(words, commands, parser_of, names)))


def names(kinds: Sequence[str], cluster: Mapping[str, str]) -> Iterable[str]:
    """Names in the cluster, of policies and of nodes that have one; none where it does not tell them at once."""
    try:
        return asyncio.run(asyncio.wait_for(_names(kinds, cluster), PATIENCE))
    except Exception:  # noqa: BLE001  whatever it is, a key was pressed, and this is no place for errors
        return ()


async def _names(kinds: Sequence[str], cluster: Mapping[str, str]) -> list[str]:
    from gpupartition import kinds as ours
    from gpupartition.kube import Client

    of: Mapping[str, Kind] = {POLICIES: ours.POLICIES, NODES: ours.NODE_STATES}
    async with Client.connect(cluster.get("kubeconfig"), cluster.get("context"), patience=PATIENCE) as client:
        found = await asyncio.gather(*(client.names(of[kind], most=MOST) for kind in kinds))
    return [name for each in found for name in each]
