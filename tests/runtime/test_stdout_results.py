"""What the JVM prints reaches standard output line by line, results apart from all else."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from forebay.runtime.stdout_results import StdoutResults
from forebay.testing.waiting import wait_until

RESULT = '{"id": "%d", "usage": {"prompt_tokens": 3, "completion_tokens": 2}, "answer": "x"}'


class Ends:
    """Pipes in place of standard output and standard error."""

    def __init__(self) -> None:
        self.out, self.out_in = os.pipe()
        self.odd, self.odd_in = os.pipe()
        self.printed = StdoutResults(self.out_in, self.odd_in)

    def run(self, program: str) -> None:
        with self.printed.taken():
            process = subprocess.Popen([sys.executable, "-c", program])
        process.wait(180)

    def close(self) -> None:
        for end in (self.out, self.out_in, self.odd, self.odd_in):
            os.close(end)


@pytest.fixture
def ends() -> Iterator[Ends]:
    made = Ends()
    yield made
    made.close()


def test_results_are_passed_on_and_counted_and_other_lines_kept_apart(ends: Ends) -> None:
    lines = [RESULT % 1, "WARNING: x", "", "[1]", '{"usage": 3}', RESULT % 2]
    ends.run(f"print({chr(10).join(lines)!r})")
    ends.printed.settle()
    assert os.read(ends.out, 10_000).decode().splitlines() == [RESULT % 1, RESULT % 2]
    assert os.read(ends.odd, 10_000).decode().splitlines() == ["WARNING: x", "[1]", '{"usage": 3}']
    printed = ends.printed
    assert (printed.results, printed.prompt_tokens, printed.completion_tokens) == (2, 6, 4)
    assert not printed.closed


def test_settled_means_that_all_is_counted(ends: Ends) -> None:
    ends.run(f"for i in range(500): print({RESULT!r} % i, flush=True)")
    ends.printed.settle()
    assert ends.printed.results == 500


def test_a_reader_that_went_away_is_noticed_and_holds_nobody_up(ends: Ends) -> None:
    os.close(ends.out)
    ends.run(f"for i in range(5000): print({RESULT!r} % i)")
    wait_until(lambda: ends.printed.closed)
    ends.printed.settle()
    assert ends.printed.results == 5000
    ends.out = os.dup(0)


def test_standard_output_is_given_back() -> None:
    program = """
import subprocess, sys
from forebay.runtime.stdout_results import StdoutResults
printed = StdoutResults()
with printed.taken():
    subprocess.run([sys.executable, "-c", "print('odd')"], check=True)
print("mine", flush=True)
printed.settle()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("mine\n", "odd\n")


@pytest.mark.parametrize("seen", [True, False])
def test_nothing_that_is_printed_steers_a_terminal_and_a_file_gets_results_as_they_are(seen: bool) -> None:
    reader, writer = os.openpty() if seen else os.pipe()
    odd, odd_in = os.pipe()
    printed = StdoutResults(writer, odd_in)
    result = RESULT.replace('"x"', '"\x9b31m \u202e"') % 1
    with printed.taken():
        sys.stdout.flush()
        os.write(1, f"odd \x1b[2J \x9b\n{result}\n".encode())
    printed.settle()
    assert os.read(odd, 10_000).decode() == "odd \ufffd[2J \ufffd\n"
    shown = os.read(reader, 10_000).decode()
    assert ("\x9b" not in shown and "\u202e" not in shown) if seen else shown == result + "\n"
    for end in (reader, writer, odd, odd_in):
        os.close(end)
