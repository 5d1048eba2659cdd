"""A trace as a waterfall in the terminal."""

from collections.abc import Iterator, Sequence

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from batonctl.trace_model import Trace, TraceRow, TraceSpan
from batonctl.trace_notes import GAPS, STATUS, duration, failures, headline, notes

COLOURS = {"baton-gateway": "cyan", "baton-prefill": "green", "baton-decode": "magenta"}
TIME_COLUMNS = 8
MIN_BAR_COLUMNS, MAX_BAR_COLUMNS = 12, 60
BAR_SHARE = 0.4
GAP = "  "
# The same drawing where the terminal cannot show anything but ASCII.
ASCII = str.maketrans({"━": "#", "┿": "|", "│": "|", "├": "|", "└": "`", "╴": "-", "µ": "u"})
ASCII[ord("…")] = "~"


def render_waterfall(trace: Trace, console: Console) -> None:
    """Prints the trace: what it adds up to, then one bar per stage on a common time axis."""
    ascii_only = console.options.ascii_only
    for line in waterfall(trace, console):
        line.rstrip()
        line.truncate(console.width, overflow="ellipsis")
        shown = _to_ascii(line) if ascii_only else line
        console.print(shown, no_wrap=True, overflow="crop", highlight=False)


def waterfall(trace: Trace, console: Console) -> Iterator[Text]:
    """The lines of the waterfall; only those of a very narrow terminal are wider than it."""
    rows = [(row, _name(row)) for row in trace.rows()]
    name_columns = max(name.cell_len for _, name in rows)
    rest = console.width - name_columns - TIME_COLUMNS - 3 * len(GAP)
    columns = min(max(int(rest * BAR_SHARE), MIN_BAR_COLUMNS), MAX_BAR_COLUMNS)
    yield from _head(trace, console.width)
    yield from _warnings(trace, console)
    yield Text()
    yield _axis(trace, name_columns, columns)
    for row, name in rows:
        name.pad_right(name_columns - name.cell_len)
        said = fitted([_plain(part) for part in notes(row.span)], rest - columns)
        text = Text(said, style="red" if row.span.error else "dim")
        time = duration(row.span.seconds).rjust(TIME_COLUMNS)
        yield Text.assemble(name, GAP, bar(row.span, trace, columns), time, GAP, text)
    yield Text()
    yield _legend(trace)


def bar(span: TraceSpan, trace: Trace, columns: int) -> Text:
    """A stage on the trace's time axis, its events marked; never shorter than one column."""
    total = max(trace.end_ns - trace.start_ns, 1)

    def column(time_ns: int) -> int:
        return min(int((time_ns - trace.start_ns) * columns / total), columns - 1)

    first, last = column(span.start_ns), column(max(span.end_ns - 1, span.start_ns))
    cells = [" "] * columns
    for index in range(first, last + 1):
        cells[index] = "━"
    for event in span.events:
        if span.start_ns <= event.time_ns <= span.end_ns:
            cells[column(event.time_ns)] = "┿"
    return Text("".join(cells), style="red" if span.error else _colour(span))


def fitted(parts: Sequence[str], columns: int) -> str:
    """The parts that fit whole, else the words of the first; an ellipsis says that more is left."""
    words = parts[0].split() if parts else []
    shorter = [", ".join([*parts[:count], "…"]) for count in range(len(parts) - 1, 0, -1)]
    shorter += [" ".join([*words[:count], "…"]) for count in range(len(words), -1, -1)]
    return next((text for text in [", ".join(parts), *shorter] if cell_len(text) <= columns), "")


def _name(row: TraceRow) -> Text:
    guides = "".join("  " if is_last else "│ " for is_last in row.last[1:-1])
    if row.depth:
        guides += "└╴" if row.last[-1] else "├╴"
    return Text.assemble((guides, "dim"), (_plain(row.span.name), _colour(row.span)))


def _head(trace: Trace, width: int) -> list[Text]:
    lines = [Text.assemble((_plain(trace.root.name), "bold"), GAP, (trace.trace_id, "dim")), Text()]
    for label, value in headline(trace):
        style = "bold red" if label == STATUS else "bold"
        fact = Text.assemble((f"{label} ", "dim"), (_plain(value), style))
        if lines[-1] and lines[-1].cell_len + len(GAP) + fact.cell_len > width:
            lines.append(Text())
        lines[-1].append(GAP if lines[-1] else "").append_text(fact)
    return lines


def _warnings(trace: Trace, console: Console) -> Iterator[Text]:
    told = [Text(_plain(failure), style="red") for failure in failures(trace)]
    if not trace.is_connected:
        told.append(Text(GAPS, style="yellow"))
    for text in told:
        yield from text.wrap(console, console.width)


def _axis(trace: Trace, name_columns: int, columns: int) -> Text:
    end = duration((trace.end_ns - trace.start_ns) / 1e9)
    scale = "0" + end.rjust(columns - 1)
    return Text(f"{'stage'.ljust(name_columns)}{GAP}{scale}{'time'.rjust(TIME_COLUMNS)}", "dim")


def _legend(trace: Trace) -> Text:
    text = Text()
    for service in dict.fromkeys(row.span.service for row in trace.rows()):
        text.append("━ ", COLOURS.get(service, "blue")).append(f"{_plain(service)}{GAP}", "dim")
    if any(span.error for span in trace.spans):
        text.append("━ ", "red").append(f"failed{GAP}", "dim")
    return text.append("┿ event", "dim")


def _colour(span: TraceSpan) -> str:
    return COLOURS.get(span.service, "blue")


def _plain(text: str) -> str:
    """One line without control characters: what a client sent must not steer the terminal."""
    return " ".join("".join(char if char.isprintable() else " " for char in text).split())


def _to_ascii(line: Text) -> Text:
    shown = line.copy()
    # One character for one, so that the styles stay where they are.
    shown.plain = line.plain.translate(ASCII).encode("ascii", "replace").decode()
    return shown
