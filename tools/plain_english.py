"""Fail on words that nobody uses at a whiteboard, in comments, docstrings, messages and documentation.

`python -m tools.plain_english` checks CLEAN, or the paths it is given; `--counts` only counts, by folder.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]

CLEAN = (
    "CONTRIBUTING.md",
    "README.md",
    "benchmarks",
    "docs",
    "src/forebay",
    "tests",
    "tools",
)
"""Files and folders that are checked. Add a line when one is clean."""

TREE = ("src", "tests", "benchmarks", "tools", "docs", "examples", "README.md", "CONTRIBUTING.md")
NOT_CHECKED = re.compile(
    r"docs/reference/(?:forebay|testing)\.md|tests/corpus/|(?:tools/|tests/tools/test_)plain_english"
)

PROMPT = "a prompt: other words change the answers"
WORDS_OF_POSTS = "a list of words in posts"
CODE_IN_TEXT = "a name in a program or a template"
ALLOWED = {
    ("benchmarks/peers/base.py", "Say"): PROMPT,
    ("benchmarks/peers/base.py", "what it is"): PROMPT,
    ("benchmarks/workload.py", "Say"): PROMPT,
    ("src/forebay/apps/sessions.py", "stands"): PROMPT,
    ("src/forebay/apps/sessions.py", "wants"): PROMPT,
    ("src/forebay/apps/summaries/prompt.py", "only where"): PROMPT,
    ("src/forebay/apps/summaries/prompt.py", "say"): PROMPT,
    ("src/forebay/apps/summaries/prompt.py", "stands"): PROMPT,
    ("src/forebay/apps/topics/settings.py", "what it is"): PROMPT,
    ("src/forebay/apps/trends/names.py", "knew"): WORDS_OF_POSTS,
    ("src/forebay/apps/trends/names.py", "say"): WORDS_OF_POSTS,
    ("src/forebay/apps/trends/names.py", "says"): WORDS_OF_POSTS,
    ("src/forebay/apps/trends/names.py", "tell"): WORDS_OF_POSTS,
    ("src/forebay/apps/trends/names.py", "told"): WORDS_OF_POSTS,
    ("src/forebay/apps/trends/names.py", "wants"): WORDS_OF_POSTS,
    ("src/forebay/apps/trends/reason.py", "say"): PROMPT,
    ("src/forebay/connectors/generator/posts.py", "so much"): "a generated post",
    ("src/forebay/untrusted_text.py", "say"): PROMPT,
    ("tests/apps/test_questions.py", "say"): PROMPT,
    ("tests/apps/test_sessions.py", "tell"): PROMPT,
    ("tests/apps/topics/test_page.py", "what it is"): PROMPT,
    ("tests/cli/test_ask.py", "Say"): PROMPT,
    ("tests/deploy/controller/test_cluster.py", "said"): CODE_IN_TEXT,
    ("tests/deploy/ray/test_faults_on_ray.py", "What of"): PROMPT,
    ("tests/engine/prompt/test_null.py", "is none"): CODE_IN_TEXT,
    ("tests/flink/test_request_handler.py", "say"): PROMPT,
    ("tests/pipeline/test_spec.py", "Say"): PROMPT,
    ("tests/flink/test_job.py", "told"): CODE_IN_TEXT,
    ("tests/pipeline/test_vllm.py", "said"): PROMPT,
}
"""Exceptions: file, the words as printed, and the reason."""

PLACES = r"(?:to|from|of|sees?|shows?|finds?|knows?|known|exactly|is|was|and|or|just|than|decides?|reads?)"
CASES = r"(?:None|False|True|\d+|empty|nothing|only|even|also|except|`),?"
MISSING = (
    r"(?:there\s+(?:is|are|was|were)|(?-i:none)|no|nothing|nobody|any|either|that\s+is|(?:\w+\s+){1,4}?(?:"
    r"cannot|lacks?|fails?|failed|differs?|dies|hangs|breaks|allows?|lets"
    r"|(?:is|are|was|were|has|have|had|does|do|did|may|need)"
    r"\s+(?:not|no|(?-i:none)|one|given|missing|wrong|needed|set)))"
)
CLAUSE = r"(?:[^.,;:|()\n]|\n(?!\n))"
CONDITION = "`where` is for places: `if`"
MARKERS = {
    rf"(?<!\S)(?:{CASES}\s+where\b(?!\s+to\b)|(?!{PLACES}\s+where)\S+\s+where\s+{MISSING}\b)": CONDITION,
    rf"(?:^|(?<=[.:;]\s)|(?<=\n\n)|(?<=\|\s))(?-i:Where)\b(?!\s+to\b){CLAUSE}+(?<!from)(?<!go)(?<!goes),\s"
    r"(?!(?:if|and|or|in|which|as|at|whether|that|so)\b)": CONDITION,
    r"\b(?:tells|told|telling)\b(?!\s+apart)": "code reports, returns or sends",
    r"\btell\b(?!:)(?!\s+(?:\S+\s+){0,3}(?:apart|from)\b)": "code reports, returns or sends",
    r"\b(?:says|(?<!was\s)said|saying)\b(?!:)": "code reports, returns or contains",
    r"(?<!,\s)\bsay\b": "code reports, returns or contains",
    r"\b(?:hears?|heard|hearing|unheard)\b": "code receives",
    r"(?<!who\s)(?<!user\s)(?<!body\s)(?<!one\s)\b(?:knows|knew)\b": "code has, records or can read",
    r"(?<!who\s)(?<!user\s)(?<!body\s)(?<!one\s)\bwants\b": "code needs or requests",
    r"\b(?:believes?|thinks|wishes|hopes)\b": "code assumes or expects",
    r"\b(?:anew|whoever|whence|hence|thence|lest|whilst|thereof|thereby|wherein|unbegun|erred)\b": "archaic",
    r"\bmend(?:s|ed|ing)?\b": "archaic: `fix`",
    r"\bbeside\b": "archaic: `next to`, `with` or `in addition to`",
    r"\bof\s+late\b(?!\s+(?:events?|records?|requests?|texts?|results?)\b)": "archaic: `recently`",
    r"\bfor\s+ever\b": "archaic: `forever`, `without end`",
    r"\bin\s+vain\b": "archaic: `without success`",
    r"\bbut\s+for\b": "archaic: `except`",
    r"(?<!there\s)\b(?:is|are|was|were|be|holds?)\s+(?-i:none)\b": "`is missing`, `is empty`",
    r"(?<!there\s)\b(?:is|are)\s+no\s+(?!(?:longer|more|less|better|worse|\w+er\s+than|one)\b)": "`is not a`",
    r"\bso\s+(?:many|much|long|few)\b": "name the number; `as long as`",
    r"\bwhat\s+(?:it|they)\s+(?:is|are|does|do|holds?|gives?|takes?)\b(?!\s+to\b)": "name it",
    r"\bwhat\s+(?:it\s+has|they\s+have)\b(?!\s+\w)": "name it",
    r"\bwhat\s+of\b": "name the part",
    r"\b(?:goes|going|went|go)\s+on\b(?!\s+(?:to\s+th|without))": "`continues`",
    r"\b(?:stands?|stood)\b(?!-)(?!\s+(?:for|in\s+for|alone|still)\b(?!\s+ever))": "code is kept or written",
    r"\brests\s+(?:in|on|with|at)\b": "`is stored in`, `depends on`",
    r"\bask(?:s|ed)?\s+of\b": "`request`, `require`",
}
CODE = re.compile(
    r"<!-- Made.*?to here. -->|<!--.*?-->|^\s*```.*?^\s*```|``?[^`]+``?|^\s*(?:>>>|\.\.\.) [^\n]*|https?://\S+",
    re.DOTALL | re.MULTILINE,
)
TOKEN = re.compile(
    r"""(\"{3}|'{3})(?:\\.|(?!\1).)*\1|"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|#[^\n]*""", re.DOTALL
)
"""Strings and comments: a tenth of the time of `tokenize`."""
PATTERNS = [(re.compile(pattern, re.IGNORECASE), reason) for pattern, reason in MARKERS.items()]


@dataclass(frozen=True)
class Finding:
    path: str
    line: int
    words: str
    reason: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.words!r}: {self.reason}"


def findings_in(path: str, source: str) -> list[Finding]:
    """The markers in a Python or Markdown file, in the order of its lines; exceptions included."""
    texts = _python_texts(source) if path.endswith(".py") else [(1, source)]
    found = set()
    for first, text in texts:
        words = CODE.sub(lambda match: re.sub(r"[^\n]", "`", match[0]), text)
        for pattern, reason in PATTERNS:
            for match in pattern.finditer(words):
                line = first + text.count("\n", 0, match.start())
                found.add(Finding(path, line, " ".join(text[match.start() : match.end()].split()), reason))
    return sorted(found, key=lambda finding: (finding.line, finding.words))


def check(paths: Iterable[str]) -> tuple[list[Finding], set[tuple[str, str]]]:
    """What is wrong in these files and folders, and which exceptions were used."""
    wrong, used = [], set()
    for name in _files(paths):
        for finding in findings_in(name, (ROOT / name).read_text(encoding="utf-8")):
            exception = (finding.path, finding.words)
            if exception in ALLOWED:
                used.add(exception)
            else:
                wrong.append(finding)
    return wrong, used


def _files(names: Iterable[str]) -> Iterator[str]:
    for name in names:
        top = ROOT / name
        if not top.exists():
            raise SystemExit(f"tools/plain_english.py: {name} does not exist: correct it in CLEAN")
        for path in sorted(top.rglob("*")) if top.is_dir() else [top]:
            file = path.relative_to(ROOT).as_posix()
            if path.suffix in (".py", ".md") and not NOT_CHECKED.match(file):
                yield file


def _python_texts(source: str) -> Iterator[tuple[int, str]]:
    """Every block of comments and every string that reads like a sentence, each with its first line."""
    block: list[str] = []
    last = 0
    line = 1
    end = 0
    for match in TOKEN.finditer(source):
        line += source.count("\n", end, match.start())
        end = match.start()
        if match[0].startswith("#"):
            if block and line != last + 1:
                yield last - len(block) + 1, "\n".join(block)
                block = []
            block.append(match[0].lstrip("# "))
            last = line
    if block:
        yield last - len(block) + 1, "\n".join(block)
    waiting: list[ast.AST] = [ast.parse(source)]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.JoinedStr):
            parts = [str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values]
            waiting += [part for part in node.values if not isinstance(part, ast.Constant)]
            text, line = "".join(parts), node.lineno
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            text, line = node.value, node.lineno
        else:
            for value in vars(node).values():
                if isinstance(value, ast.AST):
                    waiting.append(value)
                elif isinstance(value, list):
                    waiting += [each for each in value if isinstance(each, ast.AST)]
            continue
        if len(re.findall(r"[A-Za-z]{2,}\s", text)) >= 2:
            yield line, text


def main(arguments: list[str]) -> int:
    counts = "--counts" in arguments
    paths = [argument for argument in arguments if argument != "--counts"]
    wrong, used = check(paths or (TREE if counts else CLEAN))
    if counts:
        rooms, reasons = (
            Counter(each.path.rpartition("/")[0] for each in wrong),
            Counter(each.reason for each in wrong),
        )
        print(
            *(f"{number:6} {name}" for name, number in [*sorted(rooms.items()), *reasons.most_common()]),
            sep="\n",
        )
        return 0
    print(*wrong, sep="\n", end="\n" if wrong else "")
    unused = [] if paths else sorted(each for each in set(ALLOWED) - used if each[0].startswith(CLEAN))
    for path, words in unused:
        print(f"tools/plain_english.py: the exception {words!r} for {path} matches nothing: remove it")
    return int(bool(wrong or unused))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
