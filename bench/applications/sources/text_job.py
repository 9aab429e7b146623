"""text_job.py TURNS: a job over text: tables written as JSON and read again, regular expressions, sorting, joining."""
import json
import re
import sys

WORDS = [f"word{i * 7919 % 10007}" for i in range(6000)]
LINE = re.compile(r"(?P<name>[a-z]+)(?P<number>[0-9]+): (?P<rest>\S+)")

found = 0
for turn in range(int(sys.argv[1])):
    table = {word: {"length": len(word), "at": [i, i * 0.5, None], "text": word * (1 + i % 40)}
             for i, word in enumerate(WORDS)}
    again = json.loads(json.dumps(table, indent=1))
    page = "\n".join(f"{word}: {entry['text']}" for word, entry in sorted(again.items()))
    groups = {}
    for match in LINE.finditer(page):
        groups.setdefault(len(match["number"]), []).append(match["rest"].upper())
    found += sum(map(len, groups.values()))
if found == 0:
    sys.exit("nothing was found")
