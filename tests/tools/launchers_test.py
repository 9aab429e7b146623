#!/usr/bin/python3
"""rdmalloc run under launchers: the preload and the settings reach every rank.

    launchers_test.py RDMALLOC LIBRDMALLOC_SO MPI_PROGRAM

Launchers that are installed are run. How the command line of each release is changed is seen by
--dry-run, on scripts that call themselves that release. Seen to fail: with -x in the first context
only, with a user's own -x LD_PRELOAD left as it is (it came later and won), with -x beside
mca_base_env_list (Open MPI 4 refuses it), with -genv put at the end, with LD_PRELOAD left in srun's
environment, with launchers recognised by their name alone, with --pset or --gomca out of the options (the
rank ran without rdmalloc), with no look into the files of parameters (4.1.4 aborts),
with one --export for all
components of an srun, with --export looked for at the start of a directive only, with --set-sid or 4's --dvm among those that take a value,
with a value for sbatch's --wait, with pipes read, without the files that parameters name.
"""
import glob
import os
import re
import shlex
import shutil
import signal
import sys
import tempfile
import unittest

import launching
from launching import call, environment, open_mpi, script

TOOL, LIBRARY, MPI_PROGRAM = sys.argv[1:]
OURS = os.path.realpath(LIBRARY)
PRELOAD = f"LD_PRELOAD={OURS}"
# Of a rank: whether it has us, whether its parent (the launcher's process on this machine) has.
LOOK = ("for who in self $PPID; do grep -q librdmalloc /proc/$who/maps && echo with || echo without;"
        " done | xargs echo $RDMALLOC_DECAY_MS")
OPEN_MPI = shutil.which("mpirun.openmpi") or shutil.which("mpirun")
OPEN_MPI_SAYS = call([OPEN_MPI, "--version"]).stdout if OPEN_MPI else ""
# PRRTE's tables of options, in the lab's Debian 13.
PRRTE = next(iter(glob.glob(os.path.join(launching.DEBIAN_13, "usr/lib/*/libprrte.so.3.*"))), None)

SLURM = next(iter(glob.glob("/usr/lib/*/slurm*/libslurmfull.so")), None)


def run(*arguments, env=None, **more):
    return call([TOOL, "run", "--library", OURS, *arguments], env=env, **more)


def dry(*command, options=(), env=None):
    """The words of the command that would be started."""
    done = run("--dry-run", *options, "--", *command, env=env)
    assert done.returncode == 0, done
    return shlex.split(done.stdout)


class Case(unittest.TestCase):
    def setUp(self):
        holder = tempfile.TemporaryDirectory(prefix="rdmalloc-launchers-")
        self.addCleanup(holder.cleanup)
        self.folder = holder.name

    def fake(self, name, says):
        return script(os.path.join(self.folder, name),
                      f"#!/bin/sh\n[ \"$*\" = --version ] && echo '{says}' || exit 9\n")

    def arity_problems(self, launcher, words_of, between=("-x", "A=1"), mark="-x LD_PRELOAD=/x.so",
                       is_found=PRELOAD + ":/x.so"):
        """Of options each before two words: those of which the tool takes another number of words."""
        def is_seen(options):
            words = [word for name, count in options
                     for word in (("-" if len(name) == 1 else "--") + name, *["v"] * count, *between)]
            return is_found in dry(launcher, *words, *mark.split(), "prog")
        self.assertTrue(words_of)
        options = sorted(words_of.items())
        return [] if is_seen(options) else [one for one in options if not is_seen([one])]


class OpenMpi(Case):
    def setUp(self):
        super().setUp()
        self.mpirun = self.fake("mpirun", "mpirun (Open MPI) 4.1.4")

    def test_every_context_has_its_own(self):
        ours = ["-x", PRELOAD, "-x", "RDMALLOC_HUGE=never"]
        self.assertEqual(dry(self.mpirun, "-n", "1", "a", "-x", "b", ":", "-n", "2", "c",
                             options=["--set", "HUGE=never"]),
                         [self.mpirun, *ours, "-n", "1", "a", "-x", "b", ":", *ours, "-n", "2", "c"])

    def test_own_preloads_come_after_ours_and_are_not_said_twice(self):
        self.assertEqual(
            dry(self.mpirun, "-x", "A=1", "-x", "LD_PRELOAD=/x.so", "a", ":", "--wdir", "/", "b"),
            [self.mpirun, "-x", PRELOAD + ":/x.so", "-x", "A=1", "a", ":", "-x", PRELOAD, "--wdir",
             "/", "b"])
        self.assertEqual(dry(self.mpirun, "-x", "LD_PRELOAD", "a", env=environment(LD_PRELOAD="")),
                         [self.mpirun, "-x", PRELOAD, "a"])
        # The program's own -x is not the launcher's.
        self.assertEqual(dry(self.mpirun, "--mca", "pml", "ob1", "a", "-x", "LD_PRELOAD=/x.so"),
                         [self.mpirun, "-x", PRELOAD, "--mca", "pml", "ob1", "a", "-x",
                          "LD_PRELOAD=/x.so"])

    def test_own_preload_of_a_tune_file_comes_after_ours(self):
        tune = script(os.path.join(self.folder, "tune"), "-mca pml ob1\n-x A=1 -x LD_PRELOAD=/x.so\n")
        self.assertEqual(dry(self.mpirun, "--tune", tune, "a", ":", "b", ":", "-x", "LD_PRELOAD=/y.so", "c"),
                         [self.mpirun, "-x", PRELOAD + ":/x.so", "--tune", tune, "a", ":", "-x", PRELOAD + ":/x.so", "b",
                          ":", "-x", PRELOAD + ":/y.so", "c"])

    @unittest.skipUnless("(OpenRTE) 4" in OPEN_MPI_SAYS, "no Open MPI 4 is installed")
    def test_options_of_4(self):
        said = call([OPEN_MPI, "--help", "all"], env=open_mpi()).stdout
        words_of = {name.lstrip("-"): values.count("<arg") for names, values in
                    re.findall(r"(?m)^ {0,3}(-[-\w|]+)((?: <arg\d>)*)(?=\s)", said) for name in names.split("|")}
        self.assertEqual((words_of["npernode"], words_of["gmca"], words_of["dvm"]), (1, 2, 0))
        self.assertEqual(self.arity_problems(self.mpirun, words_of), [])

    @unittest.skipUnless(PRRTE, "no Debian 13 here: tools/lab --release trixie fetch")
    def test_options_of_5(self):
        tables = launching.option_tables(PRRTE)
        two = {"mca", "gmca", "omca", "gomca", "prtemca", "pmixmca"}  # of an option with a value its help says it
        for name, says, table in (
                ("mpirun", "mpirun (Open MPI) 5.0.7", next(one for one in tables if "gomca" in one)),
                ("prterun", "prterun (PRRTE) 3.0.8",
                 next(one for one in tables if "gomca" not in one and "set-sid" in one and "pset" in one))):
            words_of = {option: 2 if option in two else has if has == 1 else 0 for option, has in table.items()}
            self.assertEqual((words_of["pset"], words_of["spawn-timeout"], words_of["noprefix"]), (1, 1, 0))
            self.assertEqual(self.arity_problems(self.fake(name, says), words_of), [], name)
        # Of later releases.
        self.assertEqual(self.arity_problems(self.mpirun, {"gprtemca": 2, "gpmixmca": 2, "gpu-support": 1,
                                                           "server-wait-time": 1}), [])

    def test_values_that_are_part_of_the_word(self):
        five = self.fake("mpirun", "mpirun (Open MPI) 5.0.7")
        self.assertEqual(dry(five, "--map-by=core", "--x=LD_PRELOAD=/x.so", "a", "--x=LD_PRELOAD=/y.so"),
                         [five, "-x", PRELOAD + ":/x.so", "--map-by=core", "a", "--x=LD_PRELOAD=/y.so"])

    def test_options_of_no_release_that_we_know(self):
        # What is no program is the value, and what is one is the program.
        self.assertEqual(dry(self.mpirun, "--new-option", "no-such-program", "-x", "LD_PRELOAD=/x.so", "a"),
                         [self.mpirun, "-x", PRELOAD + ":/x.so", "--new-option", "no-such-program", "a"])
        self.assertEqual(dry(self.mpirun, "--new-option", "true", "-x", "LD_PRELOAD=/x.so"),
                         [self.mpirun, "-x", PRELOAD, "--new-option", "true", "-x", "LD_PRELOAD=/x.so"])

    def test_the_list_that_4_has_instead_of_x(self):
        self.assertEqual(
            dry(self.mpirun, "--mca", "mca_base_env_list", "A=1;LD_PRELOAD=/x.so", "a",
                options=["--purge", "off"]),
            [self.mpirun, "--mca", "mca_base_env_list",
             f"A=1;RDMALLOC_PURGE=off;{PRELOAD}:/x.so", "a"])
        for rest in (["a"], []):
            self.assertEqual(dry(self.mpirun, "--mca=mca_base_env_list", "A=1", *rest),
                             [self.mpirun, "--mca=mca_base_env_list", f"A=1;{PRELOAD}", *rest])
        listed = environment(OMPI_MCA_mca_base_env_list="A=1")
        self.assertEqual(dry(self.mpirun, "a", env=listed),
                         ["env", f"OMPI_MCA_mca_base_env_list=A=1;{PRELOAD}", self.mpirun, "a"])
        # Of a file as well: 4 would abort by our -x.
        home = os.path.join(self.folder, "home")
        os.makedirs(home + "/.openmpi")
        script(home + "/.openmpi/mca-params.conf", "# mca_base_env_list = B=1\nmca_base_env_list = A=2\n")
        tune = script(os.path.join(self.folder, "tune"), '-mca pml ob1 -mca mca_base_env_list "A=3;B=4"\n')
        self.assertEqual(dry(self.mpirun, "a", env=environment(HOME=home)),
                         ["env", f"OMPI_MCA_mca_base_env_list=A=2;{PRELOAD}", self.mpirun, "a"])
        self.assertEqual(dry(self.mpirun, "--tune", tune, "a", env=environment(HOME=home)),
                         ["env", f"OMPI_MCA_mca_base_env_list=A=3;B=4;{PRELOAD}", self.mpirun, "--tune", tune, "a"])
        other = script(os.path.join(self.folder, "other"), "mca_base_env_list=A=5\n")
        self.assertEqual(dry(self.mpirun, "a", env=environment(HOME=home, OMPI_MCA_mca_base_param_files=other)),
                         ["env", f"OMPI_MCA_mca_base_env_list=A=5;{PRELOAD}", self.mpirun, "a"])
        # With a delimiter of the user's, from wherever it comes.
        plus = script(os.path.join(self.folder, "plus"), "mca_base_env_list_delimiter = +\n")
        words = ["--mca", "mca_base_env_list", "A=1;2+LD_PRELOAD=/x.so+B=1"]
        for before, more in ((["--mca", "mca_base_env_list_delimiter", "+"], {}),
                             ([], {"OMPI_MCA_mca_base_env_list_delimiter": "+"}),
                             ([], {"OMPI_MCA_mca_base_param_files": plus})):
            self.assertEqual(dry(self.mpirun, *before, *words, "a", env=environment(**more)),
                             [self.mpirun, *before, *words[:2], f"A=1;2+B=1+{PRELOAD}:/x.so", "a"])
        # Files that a parameter names; the last option counts, before the environment.
        for name, file, value in (("envar_file_prefix", tune, "A=3;B=4"), ("param_files", other, "A=5")):
            named = environment(**{"OMPI_MCA_mca_base_" + name: file})
            wanted = f"OMPI_MCA_mca_base_env_list={value};{PRELOAD}"
            self.assertEqual(dry(self.mpirun, "a", env=named), ["env", wanted, self.mpirun, "a"])
            words = ["--mca", "mca_base_" + name, "/nowhere", "--mca", "mca_base_" + name, file, "a"]
            self.assertEqual(dry(self.mpirun, *words), ["env", wanted, self.mpirun, *words])
            self.assertEqual(dry(self.mpirun, *words[:3], "a", env=named),
                             [self.mpirun, "-x", PRELOAD, *words[:3], "a"])
        # 5 takes both.
        five = self.fake("mpirun", "mpirun (Open MPI) 5.0.7")
        self.assertEqual(dry(five, "a", env=listed), [five, "-x", PRELOAD, "a"])

    def test_bare_stats_points_to_a_folder(self):
        done = run("--dry-run", "--stats", "--", self.mpirun, "a")
        self.assertIn("--stats=FOLDER keeps them apart, and 'rdmalloc job FOLDER'", done.stderr)
        for words in (["--stats=folder", "--", self.mpirun, "a"], ["--stats", "--", "true"], ["--", self.mpirun, "a"]):
            self.assertEqual(run("--dry-run", *words).stderr, "", words)

    def test_app_files_are_said_to_be_out_of_reach(self):
        done = run("--dry-run", "--", self.mpirun, "--app", "file")
        self.assertIn("--app file", done.stderr)
        self.assertIn("its lines", done.stderr)

    def test_names_and_what_they_say(self):
        for name, says in (("mpiexec", "mpiexec (OpenRTE) 4.1.4"), ("prterun", "prterun (PRRTE) 3.0.8"),
                           ("mpirun.openmpi", "mpirun (Open MPI) 5.0.7"),
                           ("orterun", "orterun (OpenRTE) 4.0.3"),
                           ("mpiexec-openmpi", "mpiexec (Open MPI) 4.1.4")):
            program = self.fake(name, says)
            self.assertEqual(dry(program, "a"), [program, "-x", PRELOAD, "a"], name)

    def test_alternatives_and_other_links(self):
        os.symlink(self.mpirun, os.path.join(self.folder, "alternative"))
        link = os.path.join(self.folder, "launch")
        os.symlink("alternative", link)
        self.assertEqual(dry(link, "a"), [link, "-x", PRELOAD, "a"])
        # A name alone is nothing: what it says counts.
        for says, wanted in (("HYDRA build details:", "-genv"), ("mpirun (Open MPI) 4.1.4", "-x")):
            other = self.fake("mpiexec", says)
            self.assertIn(wanted, dry(other, "a"))

    def test_what_is_called_like_a_launcher_and_is_none_we_know(self):
        program = self.fake("mpirun", "Parallel Runner 9")
        done = run("--dry-run", "--", program, "a")
        self.assertEqual(shlex.split(done.stdout), ["env", PRELOAD, program, "a"])
        self.assertIn("'Parallel Runner 9'", done.stderr)


class Hydra(Case):
    def setUp(self):
        super().setUp()
        self.mpiexec = self.fake("mpiexec.hydra",
                                 "HYDRA build details:\n    Version:          4.0.2")

    def test_once_for_all_contexts_and_first(self):
        self.assertEqual(dry(self.mpiexec, "-n", "1", "a", ":", "-n", "2", "b",
                             options=["--set", "HUGE=never"]),
                         [self.mpiexec, "-genv", "LD_PRELOAD", OURS, "-genv", "RDMALLOC_HUGE",
                          "never", "-n", "1", "a", ":", "-n", "2", "b"])

    def test_own_preloads_come_after_ours(self):
        for option in ("-genv", "-env"):
            self.assertEqual(dry(self.mpiexec, option, "LD_PRELOAD", "/x.so", "a"),
                             [self.mpiexec, "-genv", "LD_PRELOAD", OURS, option, "LD_PRELOAD",
                              OURS + ":/x.so", "a"])
            self.assertEqual(dry(self.mpiexec, option, "LD_PRELOAD=/x.so", "a", "LD_PRELOAD=/y"),
                             [self.mpiexec, "-genv", "LD_PRELOAD", OURS, option,
                              PRELOAD + ":/x.so", "a", "LD_PRELOAD=/y"])

    def test_intel_mpi(self):
        program = self.fake("mpirun", "Intel(R) MPI Library for Linux* OS, Version 2021.9")
        self.assertEqual(dry(program, "a"), [program, "-genv", "LD_PRELOAD", OURS, "a"])


class Slurm(Case):
    def setUp(self):
        super().setUp()
        self.srun = self.fake("srun", "never asked")
        self.sbatch = self.fake("sbatch", "never asked")

    def test_beside_all(self):
        self.assertEqual(dry(self.srun, "-n", "2", "a", options=["--set", "FAULT=commit:1,decommit:2"]),
                         ["env", "RDMALLOC_FAULT=commit:1,decommit:2", self.srun,
                          "--export=ALL," + PRELOAD, "-n", "2", "a"])

    def test_own_preload_leaves_the_environment_that_would_win(self):
        self.assertEqual(dry(self.srun, "a", env=environment(LD_PRELOAD=OURS + ":")),
                         ["env", "-u", "LD_PRELOAD", self.srun, "--export=ALL," + PRELOAD, "a"])

    def test_own_lists(self):
        for words in (["--export=NONE"], ["--export=NIL"]):
            self.assertEqual(dry(self.srun, *words, "a", options=["--purge", "off"]),
                             ["env", "RDMALLOC_PURGE=off", self.srun,
                              "--export=RDMALLOC_PURGE," + PRELOAD, "a"])
        self.assertEqual(dry(self.srun, "-n2", "--export", "A,LD_PRELOAD=/x.so", "a", "--export=NONE"),
                         [self.srun, "-n2", "--export", f"A,{PRELOAD}:/x.so", "a", "--export=NONE"])
        self.assertEqual(dry(self.srun, "a", env=environment(SLURM_EXPORT_ENV="B")),
                         [self.srun, f"--export=B,{PRELOAD}", "a"])

    def test_components_have_each_their_own(self):
        ours = "--export=ALL," + PRELOAD
        self.assertEqual(dry(self.srun, "-n1", "a", ":", "--export=ALL,X=1", "-n1", "b", ":", "c"),
                         [self.srun, ours, "-n1", "a", ":", f"--export=ALL,X=1,{PRELOAD}", "-n1", "b", ":", ours, "c"])

    def test_components_end_at_a_batch_script(self):
        self.assertEqual(dry(self.sbatch, "job", "a", ":", "b"),
                         [self.sbatch, f"--export=ALL,{PRELOAD}", "job", "a", ":", "b"])
        self.assertEqual(dry(self.sbatch, "-n1", ":", "-n2", "job", ":", "b"),
                         [self.sbatch, f"--export=ALL,{PRELOAD}", "-n1", ":", f"--export=ALL,{PRELOAD}", "-n2", "job",
                          ":", "b"])

    def test_batch_scripts(self):
        job = script(os.path.join(self.folder, "job"), "#!/bin/sh\n#SBATCH --export=A,B\nsrun a\n")
        self.assertEqual(dry(self.sbatch, "-N", "2", job),
                         [self.sbatch, f"--export=A,B,{PRELOAD}", "-N", "2", job])
        self.assertEqual(dry(self.sbatch, "--wrap", "srun a", env=environment(SLURM_EXPORT_ENV="B")),
                         [self.sbatch, f"--export=ALL,{PRELOAD}", "--wrap", "srun a"])

    def test_wait_takes_a_value_of_srun_only(self):
        job = script(os.path.join(self.folder, "job"), "#!/bin/sh\n#SBATCH --wait --export=A\nsrun a\n")
        for option in ("-W", "--wait"):
            self.assertEqual(dry(self.sbatch, option, job), [self.sbatch, f"--export=A,{PRELOAD}", option, job])
            self.assertEqual(dry(self.sbatch, option, "--export=NONE", job),
                             [self.sbatch, option, f"--export={PRELOAD}", job])
            self.assertEqual(dry(self.srun, option, "--export=NONE", "a"),
                             [self.srun, f"--export=ALL,{PRELOAD}", option, "--export=NONE", "a"])
        self.assertEqual(dry(self.sbatch, "-WN2", job), [self.sbatch, f"--export=A,{PRELOAD}", "-WN2", job])

    def test_scripts_that_only_sbatch_can_read(self):
        fifo = os.path.join(self.folder, "fifo")
        os.mkfifo(fifo, 0o755)
        for words, name in (([fifo], fifo), ([], "the script on standard input")):
            done = run("--dry-run", "--", self.sbatch, *words, timeout=20)
            self.assertEqual(shlex.split(done.stdout), [self.sbatch, f"--export=ALL,{PRELOAD}", *words])
            self.assertIn(f"{name}: an #SBATCH --export in it is not read", done.stderr)
        for words in ([fifo, "--export=A"], ["--wrap=a"], ["no-such-script"]):
            done = run("--dry-run", "--", self.sbatch, *reversed(words), timeout=20)
            self.assertEqual((done.returncode, done.stderr), (0, ""), words)
        # Through a pipe, all of it.
        self.sbatch = script(os.path.join(self.folder, "sbatch"), '#!/bin/sh\nshift; exec cat "$1"\n')
        done = call(["bash", "-c", '"$0" run --library "$1" -- "$2" <(printf "#SBATCH -n 1\\ntrue\\n")', TOOL, OURS,
                     self.sbatch])
        self.assertEqual(done.stdout, "#SBATCH -n 1\ntrue\n", done)

    def test_directives_of_batch_scripts(self):
        for number, (lines, wanted) in enumerate((
                ("#SBATCH -n 1 --export=A,B", "A,B,"), ("#SBATCH --export A -n1", "A,"),
                ("#SBATCH --export='A,B' -N 2  # not --export=C", "A,B,"), ('#SBATCH -J "--export=A x" -n2', "ALL,"),
                ("#SBATCH --export=NONE # none", ""), ("#SBATCH --export=A\n\n# x\n#SBATCH --export=B", "B,"),
                ("true\n#SBATCH --export=A", "ALL,"), (" \n  # x\n#SBATCH --export=A", "A,"), ("  #SBATCH --export=A", "ALL,"),
                ("##SBATCH --export=A", "ALL,"))):
            job = script(os.path.join(self.folder, f"job{number}"), f"#!/bin/sh\n{lines}\nsrun a\n")
            self.assertEqual(dry(self.sbatch, job), [self.sbatch, f"--export={wanted}{PRELOAD}", job], lines)

    @unittest.skipUnless(SLURM, "no Slurm is installed: apt install slurm-client")
    def test_options(self):
        # Of its REST daemon only; "export" is what the test looks by.
        words_of = {name: has % 2 for long, letter, has in launching.slurm_options(SLURM) for name in (long, letter)
                    if name and name not in ("argv", "context", "environment", "export")}
        self.assertEqual((words_of["ntasks"], words_of["n"], words_of["exclusive"], words_of["Q"]), (1, 1, 0, 0))
        for launcher, wait in ((self.srun, 1), (self.sbatch, 0)):
            words_of.update(W=wait, wait=wait)
            self.assertEqual(self.arity_problems(launcher, words_of, ("-n", "1"), "--export=A",
                                                 f"--export=A,{PRELOAD}"), [])

    def test_commas(self):
        comma = os.path.join(self.folder, "a,b.so")
        shutil.copy(OURS, comma)
        done = call([TOOL, "run", "--library", comma, "--", self.srun, "a"])
        self.assertEqual(done.returncode, 125, done)
        self.assertIn("comma", done.stderr)


class Real:
    """What a rank sees. Each launcher is a class below, which says how it is called."""
    STATUS_OF_SIGNAL = 128 + 11

    @staticmethod
    def ended(launch):
        """mpiexec.hydra by itself was seen to die of SIGPIPE on a busy machine, when its rank had ended
        with 7: that is no status to compare. What dies so five times does so for another reason."""
        for _ in range(5):
            done = launch()
            if done.returncode != -signal.SIGPIPE:
                break
        return done

    def test_ranks_have_us_and_the_launcher_has_not(self):
        done = run("--set", "DECAY_MS=7", "--", *self.LAUNCH, "-n", "2", "sh", "-c", LOOK,
                   env=self.env())
        self.assertEqual(sorted(done.stdout.split("\n")), ["", *["7 with without"] * 2], done)
        self.assertEqual(done.stderr, "")

    def test_every_context_of_one_launch_has_us(self):
        one = ["-n", "1", "sh", "-c", LOOK]
        done = run("--", *self.LAUNCH, *one, ":", *one, env=self.env())
        self.assertEqual(sorted(done.stdout.split("\n")), ["", *["with without"] * 2], done)

    def test_status_and_errors_are_the_launchers(self):
        for command in ("exit 7", "echo lost >&2; exit 1", "kill -SEGV $$"):
            words = [*self.LAUNCH, "-n", "1", "sh", "-c", command]
            alone = self.ended(lambda: call(words, env=self.env()))
            ours = self.ended(lambda: run("--", *words, env=self.env()))
            self.assertEqual(ours.returncode, alone.returncode, (alone, ours))
            self.assertNotIn("rdmalloc", ours.stderr)
            self.assertEqual("lost" in ours.stderr, "lost" in alone.stderr)


@unittest.skipUnless(launching.is_open_mpi(shutil.which("mpirun.openmpi") or shutil.which("mpirun")),
                     "Open MPI is not installed: apt install openmpi-bin")
class RealOpenMpi(Real, unittest.TestCase):
    LAUNCH = [shutil.which("mpirun.openmpi") or shutil.which("mpirun")]

    def env(self, **more):
        return open_mpi(**more)

    def test_own_preload_of_a_rank(self):
        look = ["sh", "-c", "echo $LD_PRELOAD"]
        with tempfile.TemporaryDirectory() as folder:
            other = os.path.join(folder, "other.so")
            done = call(["cc", "-shared", "-x", "c", "-o", other, "/dev/null"])
            self.assertEqual(done.returncode, 0, done)
            done = run("--", *self.LAUNCH, "-x", f"LD_PRELOAD={other}", "-n", "1", *look,
                       env=self.env())
            self.assertEqual((done.stdout, done.stderr), (f"{OURS}:{other}\n", ""))
            tune = script(os.path.join(folder, "tune"), f"-x LD_PRELOAD={other}\n")
            done = run("--", *self.LAUNCH, "--tune", tune, "-n", "1", *look, ":", "-n", "1", *look, env=self.env())
            self.assertEqual((done.stdout, done.stderr), (2 * f"{OURS}:{other}\n", ""))

    def test_variables_by_the_list(self):
        done = run("--", *self.LAUNCH, "-n", "1", "sh", "-c", "echo $FOO; " + LOOK,
                   env=self.env(OMPI_MCA_mca_base_env_list="FOO=5"))
        self.assertEqual(done.stdout, "5\nwith without\n", done)
        with tempfile.TemporaryDirectory() as home:
            os.mkdir(home + "/.openmpi")
            script(home + "/.openmpi/mca-params.conf", "mca_base_env_list = FOO=6\n")
            tune = script(home + "/tune", '-mca mca_base_env_list "FOO=7"\n')
            for words, wanted in (([], 6), (["--tune", tune], 7)):
                done = run("--", *self.LAUNCH, *words, "-n", "1", "sh", "-c", "echo $FOO; " + LOOK,
                           env=self.env(HOME=home))
                self.assertEqual(done.stdout, f"{wanted}\nwith without\n", done)
            for name, file, wanted in (("envar_file_prefix", tune, 7),
                                       ("param_files", home + "/.openmpi/mca-params.conf", 6)):
                for words, more in (([], {"OMPI_MCA_mca_base_" + name: file}),
                                    (["--mca", "mca_base_" + name, file], {})):
                    done = run("--", *self.LAUNCH, *words, "-n", "1", "sh", "-c", "echo $FOO; " + LOOK,
                               env=self.env(**more))
                    self.assertEqual(done.stdout, f"{wanted}\nwith without\n", done)

    @unittest.skipIf(MPI_PROGRAM == "none", "built without MPI")
    def test_broadcasts(self):
        words = [*self.LAUNCH, "-n", "2", "--mca", "pml", "ob1", "--mca", "btl", "vader,self",
                 MPI_PROGRAM]
        alone, ours = (call(words, env=self.env()),
                       run("--stats", "--purge", "thread", "--set", "DECAY_MS=0", "--", *words,
                           env=self.env()))
        self.assertEqual(alone.returncode, 0, alone)
        self.assertEqual(ours.returncode, 0, ours)
        self.assertEqual(sorted(ours.stdout.split("\n")), sorted(alone.stdout.split("\n")))
        self.assertEqual(ours.stderr.count("arena_bytes"), 2, ours.stderr)


@unittest.skipUnless(shutil.which("mpiexec.hydra"), "MPICH is not installed: apt install mpich")
class RealHydra(Real, unittest.TestCase):
    LAUNCH = [shutil.which("mpiexec.hydra")]

    def env(self, **more):
        return environment(**more)

    def test_ranks_that_get_no_environment_have_us(self):
        done = run("--", *self.LAUNCH, "-genvnone", "-n", "1", "/bin/sh", "-c",
                   "/usr/bin/printenv LD_PRELOAD", env=self.env())
        self.assertEqual(done.stdout, OURS + "\n", done)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v"])
