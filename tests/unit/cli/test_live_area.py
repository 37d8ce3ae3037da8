"""The lines that are redrawn on a terminal: what its screen holds afterwards."""

from __future__ import annotations

import io
import os
import signal
import sys
from contextlib import closing
from pathlib import Path

import pyte
import pytest
from rich.text import Text
from tests.support.pseudo_terminal import PseudoTerminal

from tidelog.cli import terminal as endings
from tidelog.cli.live import LiveArea, can_be_redrawn

WIDTH, HEIGHT = 30, 10


class Terminal(io.StringIO):
    """What is written to it is shown by an emulator."""

    def __init__(self) -> None:
        super().__init__()
        self.screen = pyte.Screen(WIDTH, HEIGHT)
        self._stream = pyte.Stream(self.screen)

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self._stream.feed(text.replace("\n", "\r\n"))  # as a terminal does
        return len(text)

    @property
    def lines(self) -> list[str]:
        return [line.rstrip() for line in self.screen.display if line.strip()]


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    monkeypatch.setenv("LINES", str(HEIGHT))
    return Terminal()


def texts(*lines: str) -> list[Text]:
    return [Text(line, style="bold") for line in lines]


def test_lines_of_a_log_stand_above_and_nothing_remains(terminal: Terminal) -> None:
    with closing(LiveArea(terminal, whole=False)) as area:
        area.draw(texts("one", "two", "three"))
        area.above("a line of a log that is wider than the terminal is")
        area.draw(texts("four", "x" * 50))
        assert terminal.lines == [
            "a line of a log that is wider", "than the terminal is", "four", "x" * 29 + "…",
        ]  # fmt: skip
        assert terminal.screen.cursor.hidden
        area.above("another")
    assert terminal.lines[-2:] == ["than the terminal is", "another"]
    assert not terminal.screen.cursor.hidden


def test_a_picture_higher_than_the_terminal_is_cut_off(terminal: Terminal) -> None:
    with closing(LiveArea(terminal, whole=False)) as area:
        for round_ in range(3):
            area.draw(texts(*(f"{round_} {at}" for at in range(30))))
        assert terminal.lines == [f"2 {at}" for at in range(HEIGHT - 1)]


def test_a_narrower_terminal_keeps_no_remnant(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(LiveArea(terminal, whole=False)) as area:
        area.draw(texts("a" * WIDTH, "b" * WIDTH))
        monkeypatch.setenv("COLUMNS", "20")
        terminal.screen.resize(HEIGHT, 20)
        area.draw(texts("a" * 20, "b" * 20))
        assert terminal.lines == ["a" * 20, "b" * 20]


def test_what_is_said_on_the_whole_screen_comes_when_it_ends(terminal: Terminal) -> None:
    with closing(LiveArea(terminal, whole=True)) as area:
        area.draw(texts("one"))
        area.above("said meanwhile")
        assert terminal.lines == ["one"]
    assert terminal.lines == ["said meanwhile"]


def test_a_process_that_ends_at_once_gives_the_terminal_back(terminal: Terminal) -> None:
    area = LiveArea(terminal, whole=False)
    with endings.restored_at_exit(area.close):
        area.draw(texts("one"))
        for restore in endings._before_exit:
            restore()
        assert terminal.lines == []
        assert not terminal.screen.cursor.hidden
    assert endings._before_exit == []


def test_wide_characters_and_colours_of_a_log_line_tear_nothing(terminal: Terminal) -> None:
    with closing(LiveArea(terminal, whole=False)) as area:
        area.draw(texts("表" * 20, "next"))
        area.above("\033[31mred\033[0m [bold]no markup[/bold]")
        area.draw(texts("表" * 20, "next"))
        # the emulator has an empty cell behind each wide character
        assert terminal.lines[0] == "red [bold]no markup[/bold]"
        assert terminal.lines[1].count("表") == 14
        assert terminal.lines[1].endswith("…")
        assert terminal.lines[2:] == ["next"]


def test_no_color_is_obeyed(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    for value, colour in (("", "red"), ("1", "default")):
        monkeypatch.setenv("NO_COLOR", value)
        with closing(LiveArea(terminal, whole=False)) as area:
            area.draw([Text("late", style="red")])
            assert terminal.screen.buffer[terminal.screen.cursor.y][0].fg == colour


def test_a_terminal_that_is_gone_ends_no_process(terminal: Terminal) -> None:
    with closing(LiveArea(terminal, whole=False)) as area:
        area.draw(texts("one"))

        def fail(_text: str) -> int:
            raise OSError("the terminal is gone")

        terminal.write = fail  # type: ignore[method-assign]
        for _ in range(3):
            area.draw(texts("two"))
            area.above("three")


def test_a_terminal_that_can_only_print_is_not_redrawn(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert can_be_redrawn(terminal)
    monkeypatch.setenv("TERM", "dumb")
    assert not can_be_redrawn(terminal)


_DRAWS = """
import sys, time
from rich.text import Text
from tidelog.cli.live import live_area
with live_area(whole=sys.argv[1] == "whole") as area:
    for number in range(int(sys.argv[2])):
        area.draw([Text(f"\N{FULL BLOCK}\N{CHECK MARK} {number}")])
        time.sleep(0.3)
"""


@pytest.mark.parametrize("extent", ["whole", "last lines"])
def test_a_terminal_is_restored_where_sigterm_ends_a_command_that_does_not_wait_for_it(
    tmp_path: Path, extent: str
) -> None:
    command = [sys.executable, "-c", _DRAWS, extent, "100000"]
    with PseudoTerminal(command, tmp_path, WIDTH, HEIGHT) as shown:
        shown.wait(lambda text: "█✓ " in text)
        os.kill(shown.pid, signal.SIGTERM)
        shown.wait_ended()
        assert shown.exit_code == -signal.SIGTERM
        assert shown.written.rfind(b"\033[?25h") > shown.written.rfind(b"\033[?25l")
        assert shown.written.rfind(b"\033[?1049l") >= shown.written.rfind(b"\033[?1049h")


def test_a_terminal_whose_encoding_has_no_bars_is_restored(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _DRAWS, "whole", "3"]
    with PseudoTerminal(command, tmp_path, WIDTH, HEIGHT, PYTHONIOENCODING="ascii") as shown:
        shown.wait_ended()
        assert shown.exit_code == 0, shown.written
        assert b"?? 2" in shown.written
        assert shown.written.rfind(b"\033[?25h") > shown.written.rfind(b"\033[?25l")
        assert shown.written.rfind(b"\033[?1049l") > shown.written.rfind(b"\033[?1049h")
