"""What the tests of the grids of bench/ share: they drive a comparing program and read its JSON file."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile


class Driver:
    def __init__(self, program, name):
        self.program = program
        self.json = pathlib.Path("out") / f"{name}.json"

    def run(self, *arguments):
        """Its exit status and its output."""
        done = subprocess.run([self.program, "--quiet", *arguments], text=True, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        return done.returncode, done.stdout

    def report(self):
        return json.loads(self.json.read_text())

    def figures(self, *arguments):
        """Runs it, all of which must succeed: {(row, allocator): {figure: value}}, and the output."""
        status, output = self.run(*arguments)
        expect(status == 0 and not self.report()["failures"], f"exit status {status}, not 0", output)
        return {(cell["row"], cell["allocator"]): {name: value["median"] for name, value in cell["figures"].items()}
                for cell in self.report()["results"]}, output

    def refuses(self, cases):
        """Each of the arguments is refused, with a word of the message."""
        for arguments, wanted in cases:
            status, output = self.run(*arguments)
            expect(status == 2, f"{arguments}: exit status {status}, not 2", output)
            expect(wanted in output, f"{arguments}: the message doesn't name '{wanted}'", output)

    def refuses_as_grid(self, cases):
        self.refuses([*cases, (["--allocators", "nomalloc"], "nomalloc"), (["--filter", "no such row"], "no such row"),
                      (["--filter", "("], "--filter (")])

    def lists(self, *lines):
        status, output = self.run("--list")
        expect(status == 0 and all(line in output for line in ["allocator glibc", *lines]), "--list", output)

    def leaves_out_a_sham(self, *arguments):
        """A preload that serves no malloc must not become a column."""
        status, output = self.run(*arguments, "--allocators", "glibc", "--peer", f"sham={no_malloc()}")
        expect(status == 0, f"exit status {status}, not 0", output)
        told = self.report()
        expect({row["allocator"] for row in told["results"]} == {"glibc"}, "a sham row", output)
        failure = told["failures"][0]
        expect(failure["allocator"] == "sham" and "malloc is served by" in failure["what"], "no reason", output)

    def failures(self):
        return {(failure["row"], failure["allocator"]): failure for failure in self.report()["failures"]}


def no_malloc():
    """A library that serves no malloc."""
    return subprocess.run(["cc", "-print-file-name=libm.so.6"], text=True, check=True,
                          stdout=subprocess.PIPE).stdout.strip()


def made(name, code, *options):
    """What the C compiler makes of the code, by its path."""
    subprocess.run(["cc", "-O1", "-fno-builtin", *options, "-o", name, "-x", "c", "-"], input=code, text=True, check=True)
    return os.path.abspath(name)


def expect(condition, what, output):
    if not condition:
        print(output)
        sys.exit(f"FAILED: {what}")


def skip(why):
    print("SKIP:", why)
    sys.exit(77)


def run_case(cases, name):
    """In a folder of its own."""
    with tempfile.TemporaryDirectory() as work_folder:
        os.chdir(work_folder)
        cases[f"case_{name}"]()
