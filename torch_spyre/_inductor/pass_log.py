"""What every pass changes, in the log and as files: lines that went, lines that came.

`TORCH_LOGS="+torch_spyre.inductor.passes"` shows all, `"+torch_spyre.inductor.passes.<name>"` one
pass. With `TORCH_COMPILE_DEBUG=1` the same is in `spyre/passes/<number>_<name>.txt`.
"""

from __future__ import annotations

import difflib
import logging
import shutil
from pathlib import Path

from torch._inductor import config as inductor_config
from torch._inductor.virtualized import V

from torch_spyre.logging_config import get_logger, is_wanted

from .graph import SpyreGraph
from .graph_text import buffers_text, loops_text

log = get_logger("passes")


def debug_folder() -> Path | None:
    """Where Inductor wants the artifacts of the graph that it is compiling; None: it doesn't."""
    is_traced = inductor_config.trace.enabled and getattr(V.debug, "_path", None) is not None
    return Path(V.debug.filename("spyre")) if is_traced else None


class PassLog:
    """Follows one graph through the passes, if somebody wants to read about it."""

    def __init__(self, graph: SpyreGraph, passes: tuple[str, ...]) -> None:
        self._wanted = {name for name in passes if is_wanted(get_logger(f"passes.{name}"))}
        folder = debug_folder()
        self._folder = folder / "passes" if folder is not None else None
        self._before: list[str] = []
        if self._wanted or self._folder is not None:
            self._before = _entries(graph)
        if is_wanted(log):
            log.debug("%s before the passes\n%s", graph.name, "\n".join(self._before))
        if self._folder is not None:
            # Of an attempt to compile the same graph that came to nothing.
            shutil.rmtree(self._folder, ignore_errors=True)
            self._write("00_before_the_passes", self._before)

    def after(self, number: int, name: str, graph: SpyreGraph) -> None:
        """A pass has run; the first is number 1."""
        if not self._before:
            return
        now = _entries(graph)
        changes = changed_lines(self._before, now)
        self._before = now
        if name in self._wanted:
            text = "\n".join(changes) or "nothing changed"
            get_logger(f"passes.{name}").log(logging.DEBUG, "%s: %s\n%s", graph.name, name, text)
        if self._folder is not None and changes:
            self._write(f"{number:02}_{name}", changes)

    def _write(self, name: str, lines: list[str]) -> None:
        assert self._folder is not None
        self._folder.mkdir(parents=True, exist_ok=True)
        (self._folder / f"{name}.txt").write_text("\n".join(lines) + "\n")


def _entries(graph: SpyreGraph) -> list[str]:
    """Operations and buffers, each with the indented lines that belong to it."""
    entries: list[str] = []
    for line in [*loops_text(graph).splitlines(), *buffers_text(graph).splitlines()]:
        if line.startswith(" ") and entries:
            entries[-1] += f"\n{line}"
        else:
            entries.append(line)
    return entries


def changed_lines(before: list[str], after: list[str]) -> list[str]:
    """Lines that went, marked with `-`, and lines that came, with `+`.

    Of an entry of which only indented lines changed the first line is there, too, unmarked.
    """
    found: list[str] = []
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
    for tag, i, i_end, j, j_end in matcher.get_opcodes():
        if tag == "equal":
            continue
        went = {heading: rest for heading, *rest in map(str.splitlines, before[i:i_end])}
        came = {heading: rest for heading, *rest in map(str.splitlines, after[j:j_end])}
        for heading in went:
            if heading not in came:
                found += [f"- {line}" for line in (heading, *went[heading])]
        for heading, rest in came.items():
            if heading in went:
                found.append(f"  {heading}")
                found += [f"- {line}" for line in went[heading] if line not in rest]
                found += [f"+ {line}" for line in rest if line not in went[heading]]
            else:
                found += [f"+ {line}" for line in (heading, *rest)]
    return found
