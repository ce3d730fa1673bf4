"""As much of a terminal as the live view needs: what is on it in the end, and what has scrolled off."""

from __future__ import annotations

import re

_TOKENS = re.compile(r"\x1b\[(\?)?([0-9;]*)([A-Za-z])|\x1b\].*?(?:\x07|\x1b\\)|[\r\n]|[^\x1b\r\n]")


class Terminal:
    """`rows` holds everything that was ever shown, the scrolled-off lines first. The cursor cannot go above the last `height` of them."""

    def __init__(self, width: int, height: int) -> None:
        self.width, self.height = width, height
        self.rows = [""] * height
        self._row = self._column = 0

    def feed(self, text: str) -> None:
        for token in _TOKENS.finditer(text):
            word = token.group()
            if word == "\r":
                self._column = 0
            elif word == "\n":
                self._down()
            elif word.startswith("\x1b"):
                self._control(token.group(2) or "", token.group(3) or "")
            else:
                self._put(word)

    def text(self) -> str:
        return "\n".join(row.rstrip() for row in self.rows).rstrip()

    def _down(self) -> None:
        self._column = 0  # a tty adds the carriage return
        self._row += 1
        if self._row == len(self.rows):
            self.rows.append("")

    def _put(self, character: str) -> None:
        if self._column == self.width:
            self._down()
        row = self.rows[self._row].ljust(self._column)
        self.rows[self._row] = row[: self._column] + character + row[self._column + 1 :]
        self._column += 1

    def _control(self, number: str, letter: str) -> None:
        if letter == "A":
            self._row = max(len(self.rows) - self.height, self._row - int(number or 1))
        elif letter == "K":
            self.rows[self._row] = ""
