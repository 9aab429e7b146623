#!/usr/bin/python3
"""The English of comments and documents: no word that hides what acts.

Name the thread, the caller, the kernel, the library instead. And words that were given up do not come back
(docs/design.md, "Words", has those that hold).
Seen to fail: with "whoever" and "for who asks" once in regcache/core/drop.h, with is_parked in
regcache/core/registration.h, with depot_put_rest() in alloc/cache/depot.h, with soil() in alloc/pages/page_heap.cc.
"""
import re
import sys
import unittest

import tree

# In names of tests too, but for the user of that name.
HIDES_THE_SUBJECT = re.compile(r"(?<![\"A-Za-z])([Ww]hoever|[Ww]homever|[Nn]obody|[Ss]omebody|[Aa]nybody|[Hh]e|[Hh]is|[Hh]im|[Hh]imself"
                               r"|who (?:finds|comes)|(?:by|of|from|for|as|acquires? by) who(?=\s+[a-z]+s\b))(?![\"A-Za-z])")
# Given up, where, and what to say instead.
GIVEN_UP = [
    (r"\w*park(?:s|ed|ing)?(?=_|\b|[A-Z])", "regcache/", "suspend"),
    (r"child_empty", "", "wiped_on_fork"),
    (r"\boracle_\w+", "regcache/", "page_frames_..., the page-frame check"),
    (r"hands_off", "", "check_foreign_call(), the foreign-call check"),
    (r"\w*stranger\w*", "regcache/", "what it is: another range's record, an unknown library"),
    (r"\blet_go\w*", "regcache/", "give_reference_back()"),
    (r"\blet_go\w*", "alloc/", "subtract_held()"),
    (r"(?:\b|_)shel(?:f|ves)\b", "alloc/", "the bin's cold half: ColdBin"),
    (r"\w+_(?:of_)?rest\b", "alloc/cache/", "partial"),
    (r"send_home\w*", "alloc/", "return_remote_blocks()"),
    (r"\b(?:settle|soil|strike|forgive|sum_up|spared|out_of_reach)\b", "alloc/", "plain verbs: free_if_empty(), make_dirty(), retained"),
    (r"\b(?:settle|forgive|sum_up|out_of_reach)\(", "regcache/", "a plain verb"),
]


FILES = [name for name in tree.files()
         if name.endswith((".h", ".hpp", ".cc", ".c", ".cpp", ".md", ".py", ".txt", ".7", ".3", ".1", ".cmake"))
         and not name.startswith(("tests/abi/1/", "bench/programs/")) and name != "tests/structure/words_test.py"]


class Words(unittest.TestCase):
    def test_subjects_have_names(self):
        found = []
        for name in FILES:
            for number, line in enumerate(tree.text(name).splitlines(), 1):
                found += [f"{name}:{number}: {word}" for word in HIDES_THE_SUBJECT.findall(line)]
        self.assertEqual(found, [], "\n".join(["", *found]))

    def test_words_that_were_given_up_stay_away(self):
        wrong = []
        for name in FILES:
            for word, where, instead in GIVEN_UP:
                if name.startswith(where) and name != "CHANGELOG.md":
                    wrong += [f"{name}: {one}: say {instead}" for one in re.findall(word, tree.text(name))]
        self.assertEqual(wrong, [])


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v"])
