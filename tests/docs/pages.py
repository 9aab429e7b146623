"""The code blocks of a page, in order, for the test that runs them.

    ```sh [NEED] [status=0,77]     run by bash; NEED is slurm, mpich, docker, kubernetes, install, package
                                   or repository
    ```text                        what the block before must print: each line, where "…" is anything
    ```c, ```bash, …               a file, named by the end of the line before: `program.c`:
"""
import re
from dataclasses import dataclass, field

BLOCK = re.compile(r"^```([a-z]+)([^\n]*)\n(.*?)^```$", flags=re.M | re.S)


@dataclass
class Block:
    language: str
    text: str
    line: int
    file: str = ""
    need: str = ""
    statuses: list = field(default_factory=lambda: [0])
    shows: list = field(default_factory=list)


def blocks_of(text):
    all_of_it = []
    for found in BLOCK.finditer(text):
        language, words, code = found.groups()
        line = text.count("\n", 0, found.start()) + 1
        block = Block(language, code, line)
        for word in words.split():
            if word.startswith("status="):
                block.statuses = [int(number) for number in word[7:].split(",")]
            else:
                block.need = word
        if language == "text":
            all_of_it[-1].shows += code.splitlines()
            continue
        if language != "sh":
            before = text[:found.start()].rstrip().splitlines()[-1]
            names = re.findall(r"`([\w.-]+)`", paragraph_before(text, found.start()))
            if not before.endswith(":") or not names:
                raise AssertionError(f"line {line}: the text before the block does not name its file")
            block.file = names[0] if len(names) == 1 else names_in_line(before, names)
        all_of_it.append(block)
    return all_of_it


def paragraph_before(text, end):
    return text[:end].rstrip().split("\n\n")[-1]


def names_in_line(line, names):
    """The last name of the paragraph that is a file's."""
    return [name for name in names if "." in name or name == "Dockerfile"][-1 if line else 0]


def is_shown(expected, output):
    """A line of the page among those of the output; "…" stands for anything."""
    pattern = ".*".join(re.escape(part) for part in expected.strip().split("…"))
    return re.search(pattern, output) is not None
