#!/usr/bin/env python3
"""Run every tool under system faults, signals, concurrent replacement and corrupt input, case by case.

    sweep.py NAME [--seconds S] [--cases N] [--from N] [-j JOBS] [--limit S]

NAME is
    faults   each system call, and each allocation, fails in turn
    kill     kill -9 before each call that a tool makes, and at random times; then the command is run again
    disk     the disk becomes full after each multiple of 64 KiB written, simulated in four ways
    signals  SIGTERM, SIGINT, SIGHUP, SIGSTOP and SIGCONT at random times
    readers  an output is read while it is replaced
    flips    one bit of a bundle, a stream, an export or a signature is flipped; prints a table of the checks that found it
    family   signals to fm-family at random times, kill -9 of it, of its child, of both; two at once on one folder;
             each followed by the same command
    configs  one key of a config.json is missing, of another type, negative, huge, duplicated, ...
    all      all of these in turn; --seconds is their total

Cases are numbered: `--from N --cases 1` repeats one.  They are sorted by digests of their titles, so
that a run stopped by --seconds has covered some of each kind, and a new case does not move the others
far.  At its end, even after SIGTERM, the run prints the number to continue with.  A line is printed for
each case that did not behave as documented (fm(7), EXIT STATUS, FILES), and the exit status is then 1.  A
tool that has not ended after --limit seconds (default: 60) counts as hung.  BUILD names the build (default:
build).
"""
import argparse
import hashlib
import json
import os
import pathlib
import queue
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "golden"
BUILD = ROOT / os.environ.get("BUILD", "build")
FAULTS = BUILD / "tests/unit/faults.so"
MODEL = str(GOLDEN / "odd-mixtral")
LIMIT = 60  # seconds until a tool counts as hung; --limit
STOP = threading.Event()  # set by SIGTERM: no further cases are started
FITTING = (66, 71, 73, 74, 77)  # exit statuses allowed after a fault of the machine (lib/base/err.h)

DATA = f"--model {MODEL} --tokens {MODEL}/tokens.npy -T 1 -q"
REF = DATA + " --device ref"  # without oneDNN, which generates code in every process
SETUP = [
    f"fm-rank {REF} -o ranked",
    f"fm-train {REF} --method saliency --budget-step 0.2 -o trained ranked",
    f"fm-recover {REF} --steps 1 -o recovered trained",
    f"fm-pack --model {MODEL} -q -o family.fm recovered",
    "fm-pack -q --export out40 --budget 0.4 --layout ragged family.fm",
    "openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out key.pem",
    "openssl pkey -in key.pem -pubout -out key.pub",
    "fm-verify -T 1 -q --sign key.pem family.fm",
]


class Course:
    """A command.  Its result is `out`, or what it prints.  LEAST is the smallest --memory that it accepts."""

    def __init__(self, title, command, stdin=None, pipe=False):
        self.title, self.argv, self.stdin, self.pipe = title, command.split(), stdin, pipe
        self.makes = "out" in self.argv
        self.want, self.counts, self.seconds = None, {}, 0.0


COURSES = [
    Course("list as JSON", "fm-pack --list --json ranked"),
    Course("rank", f"fm-rank {DATA} --state state -o out"),
    Course("rank text", f"fm-rank --model {GOLDEN}/tiny-mixtral --text {GOLDEN}/text/rows.jsonl --separator none "
           "--seq-len 32 --max-tokens 64 -T 1 -q --device ref -o out"),
    Course("train", f"fm-train {DATA} --method learned --steps 2 --until 0.2 --budget-step 0.1 --memory LEAST "
           "--state state -o out", "ranked"),
    Course("recover", f"fm-recover {REF} --steps 1 --memory LEAST -o out trained"),
    Course("pack", f"fm-pack --model {MODEL} -T 1 -q -o out", "recovered"),
    Course("pack to a pipe", f"fm-pack --model {MODEL} -T 1 -q trained"),
    Course("list", "fm-pack --list family.fm"),
    *[Course("export " + layout, f"fm-pack -T 1 -q --export out --budget 0.4 --layout {layout} family.fm")
      for layout in ("ragged", "uniform", "elastic", "native")],
    Course("export to a pipe", "fm-pack -T 1 -q --export - --budget 0.4 family.fm"),
    Course("verify a bundle", "fm-verify -T 1 -q family.fm"),
    Course("verify a pipe", "fm-verify -T 1 -q -", "family.fm", pipe=True),
    Course("verify an export", "fm-verify -T 1 -q out40 --against family.fm"),
    Course("sign", "fm-verify -T 1 -q --force --sign key.pem family.fm"),
    Course("verify a signature", "fm-verify -T 1 -q --trusted key.pub family.fm"),
    Course("bench", f"fm-bench quality --tokens {MODEL}/tokens.npy -T 1 -q --plot out --device ref "
           "--budgets 0.4 family.fm"),
]


def tree(path):
    """The bytes of a file, or of all files of a directory by name; None if it does not exist."""
    if path.is_dir():
        return {str(p.relative_to(path)): p.read_bytes() for p in sorted(path.rglob("*")) if p.is_file()}
    return path.read_bytes() if path.exists() else None


def remove(path):
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    elif path.exists() or path.is_symlink():
        path.unlink()


class Place:
    """A folder with the inputs, in which one case at a time runs."""

    def __init__(self, folder):
        self.folder = folder
        self.out = folder / "out"
        self.kept = {name: tree(folder / name) for name in ("family.fm.sig", "out40")}

    def start(self, course, fault=None, extra=(), limit=None):
        environment = dict(os.environ, PATH=f"{BUILD}/bin:{os.environ['PATH']}", TMPDIR=str(self.folder),
                           LC_ALL="C")
        if fault is not None:
            environment.update(LD_PRELOAD=str(FAULTS), FM_FAULT=fault, FM_FAULT_TOLD="told")
            remove(self.folder / "told")
        if "LEAST" in course.argv:
            course.argv[course.argv.index("LEAST")] = self.least(course, environment)
        argv = [course.argv[0], *extra, *course.argv[1:]]
        if "quality" in argv:
            argv = [argv[0], "quality", *extra, *course.argv[2:]]
        if limit is not None:  # options of bash's ulimit
            argv = ["bash", "-c", f'ulimit {limit}; exec "$@"', "-", *argv]
        stdin = subprocess.PIPE if course.pipe else subprocess.DEVNULL
        with open(self.folder / "stdout", "wb") as out, open(self.folder / "stderr", "wb") as err:
            if course.stdin and not course.pipe:
                with open(self.folder / course.stdin, "rb") as given:
                    return subprocess.Popen(argv, cwd=self.folder, env=environment, stdin=given, stdout=out,
                                            stderr=err)
            p = subprocess.Popen(argv, cwd=self.folder, env=environment, stdin=stdin, stdout=out, stderr=err)
        if course.pipe:
            try:
                p.stdin.write((self.folder / course.stdin).read_bytes())
            except BrokenPipeError:
                pass
            try:
                p.stdin.close()
            except BrokenPipeError:
                pass
        return p

    def least(self, course, environment):
        argv = [*("1K" if x == "LEAST" else x for x in course.argv), "--dry-run"]
        plain = {k: v for k, v in environment.items() if k != "LD_PRELOAD"}
        said = subprocess.run(argv, cwd=self.folder, env=plain, stdin=subprocess.DEVNULL, capture_output=True,
                              text=True).stderr
        return said.split("use --memory ")[1].split()[0]

    def run(self, course, **how):
        p = self.start(course, **how)
        try:
            return p.wait(LIMIT)
        except subprocess.TimeoutExpired:
            p.kill()
            p.wait()
            return "timed out"

    def told(self):
        """(whether the fault was injected, the number of calls of each function)"""
        path = self.folder / "told"
        lines = path.read_text().splitlines() if path.exists() else []
        return lines[:1] == ["hit"], {w[0]: int(w[1]) for w in (x.split() for x in lines) if len(w) == 2}

    def sentence(self):
        return (self.folder / "stderr").read_text(errors="replace")

    def result(self, course):
        return tree(self.out if course.makes else self.folder / "stdout")

    def left(self):
        return [p.name for p in self.folder.iterdir() if p.name.startswith((".", "fm-"))]

    def clean(self):
        for p in list(self.folder.iterdir()):
            if p.name.startswith((".", "fm-", "out.", "state")) or p.name == "out":
                remove(p)

    def again(self, course):
        """Run the same command after a case; returns what is wrong with its result, or ''."""
        there = self.out.exists()
        if there and self.result(course) != course.want:
            return "incomplete output"
        status = self.run(course, extra=["--force"] if there else [])
        if status != 0:
            return f"again: status {status}: {self.sentence()}"
        if self.result(course) != course.want:
            return "again: different bytes"
        if self.left() or (self.folder / "state").exists():
            return f"again: {self.left()} left"
        return ""


class Sweep:
    """A sweep has a list of cases, made by `plan`, or an endless series (`cases` is None)."""

    cases = None

    def __init__(self, places):
        self.places = places

    @staticmethod
    def mixed(cases):
        """Sort the cases by the digest of their titles."""
        return sorted(cases, key=lambda c: digest(" ".join(x.title if isinstance(x, Course) else str(x) for x in c)))

    def measure(self, course, place):
        """Run without a fault, and keep the result, the calls that were made and the time."""
        status = place.run(course, fault="none:0:fail")
        course.counts = place.told()[1]
        course.want = place.result(course)
        if status != 0 or course.want is None:
            sys.exit(f"{course.title} fails without a fault: status {status}: {place.sentence()}")
        place.clean()
        began = time.monotonic()
        place.run(course)
        course.seconds = time.monotonic() - began
        place.clean()


class Faults(Sweep):
    def plan(self, place):
        cases, allocations = [], []
        for course in COURSES:
            self.measure(course, place)
            allocations += [(course, f"malloc:{i}:fail") for i in range(1, course.counts["malloc"] + 1)]
            for call, n in course.counts.items():
                if call in ("any", "space", "malloc"):
                    continue
                cases += [(course, f"{call}:{i}:fail") for i in range(1, n + 1)]
                if call in ("read", "pread", "write", "pwrite"):
                    cases += [(course, f"{call}:{i}:{kind}") for i in range(1, n + 1)
                              for kind in ("interrupt", "short")]
                if call == "statvfs" and n:
                    cases.append((course, "statvfs:1:full"))
        self.cases = self.mixed(cases) + self.mixed(allocations)  # allocations last: there are ten times as many

    def case(self, number, place):
        course, fault = self.cases[number]
        return f"{course.title}, {fault}", self.judge(course, place, fault, place.run(course, fault=fault))

    @staticmethod
    def judge(course, place, fault, status):
        said, what = place.sentence(), ""
        result = place.result(course)
        lost = course.argv[0] == "fm-bench" and result is None and "the plot is lost" in said
        if status == 0 and result != course.want and not lost:
            what = "another result"
        elif fault.endswith(("interrupt", "short")) and status != 0:
            what = "the fault should have no effect"
        elif status != 0 and status not in FITTING:
            what = "wrong exit status for this fault"
        elif fault == "statvfs:1:full" and status not in (0, 73, 74):
            what = "a full disk is not detected at the start"
        elif status != 0 and (course.argv[0] + ": ") not in said:
            what = "no error message"
        elif status != 0 and course.makes and result is not None and result != course.want:
            what = "incomplete output"
        elif place.left() and not fault.startswith("unlink"):
            what = f"{place.left()} left"
        elif course.makes:  # the next run removes what a failed unlink left
            if place.left() or fault.startswith("unlink"):
                what = place.again(course)
        return f"status {status}: {what}: {said}" if what else ""


class Kill(Sweep):
    """Cases with even numbers kill before a call of the tool, those with odd numbers at a random time."""

    def plan(self, place):
        self.courses = [c for c in COURSES if c.makes]
        self.calls = []
        for course in self.courses:
            self.measure(course, place)
            self.calls += [(course, n) for n in range(1, course.counts["any"] + 1)]
        self.calls = self.mixed(self.calls)

    def case(self, number, place):
        chance = random.Random(number)
        if number % 2 == 0:
            course, n = self.calls[number // 2 % len(self.calls)]
            title = f"{course.title}, before call {n}"
            place.run(course, fault=f"any:{n}:kill")
        else:
            course = chance.choice(self.courses)
            after = chance.uniform(0, 1.1 * course.seconds)
            title = f"{course.title}, after {after:.4f} s"
            p = place.start(course)
            time.sleep(after)
            p.kill()
            p.wait()
        return title, place.again(course)


class Disk(Sweep):
    def plan(self, place):
        cases = []
        for course in COURSES:
            if course.want is None:
                self.measure(course, place)
            want = course.want
            size = len(want) if isinstance(want, bytes) else sum(len(b) for b in want.values())
            for at in range(0, 2 * size + 65536, 65536):  # temporary and state files count too
                cases += [(course, max(at, 1024), how) for how in ("full", "fail", "tiny", "file")]
        self.cases = self.mixed(cases)

    def case(self, number, place):
        course, at, how = self.cases[number]
        if how == "file":  # a limit on each file
            return (f"{course.title}, ulimit -f {at // 1024}",
                    Faults.judge(course, place, "", place.run(course, limit=f"-f {at // 1024}")))
        if how == "tiny":  # not at a round number
            at = at // 16 + 1 + number % 7
        fault = f"space:{at}:{'full' if how == 'full' else 'fail'}"
        return f"{course.title}, {fault}", Faults.judge(course, place, "", place.run(course, fault=fault))


class Signals(Sweep):
    def plan(self, place):
        for course in COURSES:
            self.measure(course, place)

    def case(self, number, place):
        chance = random.Random(number)
        course = chance.choice(COURSES)
        sig = chance.choice([signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGSTOP])
        after = chance.uniform(0, 1.1 * course.seconds)
        title = f"{course.title}, {sig.name} after {after:.4f} s"
        p = place.start(course)
        time.sleep(after)
        p.send_signal(sig)
        if sig == signal.SIGSTOP:
            time.sleep(0.02)
            p.send_signal(signal.SIGCONT)
        try:
            status = p.wait(LIMIT)
        except subprocess.TimeoutExpired:
            p.kill()
            p.wait()
            return title, "timed out"
        result, said = place.result(course), place.sentence()
        if status == 0 and result != course.want:
            return title, f"different result: {said}"
        if status == 0:
            return title, f"{place.left()} left" if place.left() else ""
        if sig == signal.SIGSTOP:
            return title, f"status {status}: the signal should have no effect: {said}"
        saved = status == 75 and "--state" in course.argv
        if status not in (-sig, 128 + sig) and not saved:
            return title, f"status {status}: {said}"
        if place.left():
            return title, f"{place.left()} left"
        return title, place.again(course) if course.makes else ""


class Readers(Sweep):
    """While a file or an export is replaced by a similar one, a reader must see a complete one, or report the
    replacement."""

    def plan(self, place):
        self.pack = Course("replace a bundle", f"fm-pack --model {MODEL} -T 1 -q --force -o out trained")
        self.export = {b: Course("replace an export", f"fm-pack -T 1 -q --force --export out --budget {b} "
                                 "--layout ragged family.fm") for b in ("0.2", "0.4")}

    def case(self, number, place):
        chance = random.Random(number)
        look = Course("verify", "fm-verify -T 1 -q out")
        writers = [self.pack] * 2 if number % 2 == 0 else list(self.export.values())
        if place.run(writers[0]) != 0:
            return writers[0].title, place.sentence()
        writer = place.start(writers[1])
        time.sleep(chance.uniform(0, 0.02))
        reads = 0
        while writer.poll() is None or reads == 0:
            reads += 1
            status = place.run(look)
            said = place.sentence()
            told = number % 2 == 1 and status == 74 and "was replaced while it was read" in said
            told = told or (status == 77 and "the sandbox denied it" in said)  # replaced before it was opened
            if status != 0 and not told:
                writer.wait()
                return f"{writers[1].title}, read {reads}", f"status {status}: {said}"
        if writer.wait() != 0:
            return writers[1].title, f"the writer: status {writer.returncode}"
        status = place.run(look)
        return writers[1].title, f"after: status {status}" if status else ""


def digest(text):
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def safetensors_parts(data, name, begin=0):
    """Yield (class, first byte, end) for each part of a safetensors file, or of a member at `begin`."""
    size = int.from_bytes(data[begin : begin + 8], "little")
    table = json.loads(data[begin + 8 : begin + 8 + size])
    yield f"{name} header", begin, begin + 8 + size
    for tensor, t in table.items():
        if tensor == "__metadata__":
            continue
        last = tensor.rsplit(".", 1)[-1]
        code = t["dtype"].startswith(("F8", "F4", "U8", "I32"))
        kind = ("scales" if "scale" in last else "codes" if code else "values") if "weights" in name else last
        if tensor.startswith("tensor."):
            kind = "digests of others"
        at, end = (begin + 8 + size + offset for offset in t["data_offsets"])
        if end > at:
            yield f"{name} {kind}", at, end


TAR_FIELDS = (("name", 0, 100), ("mode, ids", 100, 124), ("size", 124, 136), ("time", 136, 148),
              ("checksum", 148, 156), ("type", 156, 157), ("link", 157, 257), ("magic", 257, 265),
              ("owners, devices", 265, 345), ("prefix", 345, 500), ("rest", 500, 512))


def tar_parts(data):
    """Yield (class, first byte, end) for each region of a bundle, of one part of a bundle, or of a stream."""
    at = 0
    while any(data[at : at + 512]):
        yield from ((f"tar header: {field}", at + a, at + b) for field, a, b in TAR_FIELDS)
        name = data[at : at + 100].rstrip(b"\0").decode()
        size = int(data[at + 124 : at + 136].rstrip(b"\0 "), 8)
        first = at + 512
        kind = ("pads" if name.startswith(".pad/") else "carried" if name.startswith("carried/") else
                "weights" if name.startswith("weights/") else name.removesuffix(".safetensors"))
        if name.endswith(".safetensors"):
            yield from safetensors_parts(data, kind, first)
        elif size:
            yield kind, first, first + size
        at = first + (size + 511) // 512 * 512
        if at > first + size:
            yield "tar padding", first + size, at
    yield "tar end", at, len(data)


class Flips(Sweep):
    """fm-verify must find the flipped bit, and the next tool must refuse the file or give the right result.

    Programs that load an export do not check digests, so for exports the second check is --against.  For
    each class, the table counts the cases, those that fm-verify found without --against, those that the next
    tool refused, and those in which its result was right.
    """

    EACH = 24  # bits per class and file; all bits if there are fewer
    FOUND = (1, 65, 78)
    LAYOUTS = sorted(p.stem for p in (ROOT / "lib/export/layouts").glob("*.c"))
    CODES = str(GOLDEN / "packed/nvfp4")
    CODED = f"--model {CODES} --tokens {CODES}/tokens.npy -T 1 -q --device ref"
    SETUP = [
        "cp family.fm signed.fm",
        "fm-verify -T 1 -q --sign key.pem signed.fm",
        f"fm-pack --model {MODEL} -T 1 -q --part-size 384K -o parts.fm recovered",
        f"fm-rank {CODED} -o coded.rank",
        f"fm-train {CODED} --method saliency --budget-step 0.2 -o coded.train coded.rank",
        f"fm-pack --model {CODES} -T 1 -q -o coded.fm coded.train",
        *[f"fm-pack -T 1 -q --export as-{x} --budget 0.4 --layout {x} family.fm" for x in LAYOUTS],
        "fm-pack -T 1 -q --export as-shards --budget 0.4 --layout ragged --shard-size 100K family.fm",
        "fm-pack -T 1 -q --export coded-ragged --budget 0.4 --layout ragged coded.fm",
        "fm-pack -T 1 -q --export as-signed --budget 0.4 --layout ragged family.fm",
        "fm-verify -T 1 -q --sign key.pem as-signed",
    ]

    def plan(self, place):
        export = "fm-pack -T 1 -q --export out --budget 0.4 --layout"
        after = {
            "ranked": [f"fm-train {REF} --method saliency --budget-step 0.2 -o out ranked"],
            "trained": [f"fm-pack --model {MODEL} -T 1 -q -o out trained"],
            "recovered": [f"fm-pack --model {MODEL} -T 1 -q -o out recovered"],
            "family.fm": [f"{export} {x} family.fm" for x in self.LAYOUTS],
            "coded.fm": [f"{export} {x} coded.fm" for x in self.LAYOUTS],
            "signed.fm": [], "signed.fm.sig": [], "as-signed": [],
            "coded-ragged": ["fm-verify -T 1 -q coded-ragged --against coded.fm"],
            **{f"as-{x}": [f"fm-verify -T 1 -q as-{x} --against family.fm"] for x in (*self.LAYOUTS, "shards")},
        }  # fmt: skip
        parts = sorted(p.name for p in place.folder.glob("parts-*.fm"))
        after |= {part: [f"{export} ragged {parts[0]}"] for part in parts}
        self.check, self.after, self.places_of, cases = {}, {}, {}, []
        self.counts = {}
        for name, commands in after.items():
            target = name.removesuffix(".sig")
            trusted = "--trusted key.pub " if "signed" in name else ""
            self.check[name] = Course("verify", f"fm-verify -T 1 -q {trusted}{parts[0] if name in parts else target}")
            self.after[name] = [Course(command, command) for command in commands]
            for course in [self.check[name], *self.after[name]]:
                self.measure(course, place)
            for file in sorted(p for p in (place.folder / name).rglob("*") if p.is_file()) or [place.folder / name]:
                path = str(file.relative_to(place.folder))
                for kind, begin, end in self.classes(file, file.read_bytes()):
                    self.places_of.setdefault((name, kind), []).append((path, begin, end))
        for (name, kind), spans in self.places_of.items():
            bits = sum(8 * (end - begin) for _, begin, end in spans)
            cases += [(name, kind, k) for k in range(min(bits, self.EACH))]
        self.cases = self.mixed(cases)

    @staticmethod
    def classes(file, data):
        if file.name.endswith(".safetensors"):
            yield from safetensors_parts(data, "weights")
        elif file.suffix == ".fm" or not file.suffix:
            yield from tar_parts(data)
        elif file.name == "README.md":  # its owner may edit the rest
            yield file.name, data.index(b"<!-- fm-pack: begin"), data.index(b"<!-- fm-pack: end")
        else:
            yield "signature" if file.suffix == ".sig" else file.name, 0, len(data)

    def case(self, number, place):
        name, kind, k = self.cases[number]
        spans = self.places_of[name, kind]
        bits = sum(8 * (end - begin) for _, begin, end in spans)
        bit = k if bits <= self.EACH else digest(f"{name} {kind} {k}") % bits
        for path, begin, end in spans:
            if bit < 8 * (end - begin):
                break
            bit -= 8 * (end - begin)
        at = begin + bit // 8
        self.flip(place.folder / path, at, bit % 8)
        try:
            what = self.judge(name, kind, k, place)
        finally:
            self.flip(place.folder / path, at, bit % 8)
        return f"{name}, {kind}, {path}: bit {bit % 8} of byte {at}", what

    @staticmethod
    def flip(path, at, bit):
        with open(path, "r+b") as file:
            file.seek(at)
            byte = file.read(1)[0] ^ 1 << bit
            file.seek(at)
            file.write(bytes([byte]))

    def count(self, name, kind, found, following):
        """`following` is the next tool's status, or None without a next tool."""
        export = name.startswith("as-") or name == "coded-ragged"
        counts = self.counts.setdefault(("exports: " if export else "") + kind, [0] * 4)
        for i, yes in enumerate((True, found, following, following == 0)):
            counts[i] += bool(yes)

    def table(self):
        print("| class | cases | fm-verify | the next tool refuses | its result is the same |")
        print("| :-- | --: | --: | --: | --: |")
        for kind, counts in sorted(self.counts.items()):
            print(f"| {kind} |", " | ".join(map(str, counts)), "|")

    def judge(self, name, kind, k, place):
        checked = place.run(self.check[name])
        said = place.sentence()
        if checked not in (0, *self.FOUND):
            return f"fm-verify: status {checked}: {said}"
        if not self.after[name]:
            self.count(name, kind, checked, None)
            return "" if checked else "not found"
        course = self.after[name][k % len(self.after[name])]
        status = place.run(course)
        if status not in (0, *self.FOUND):
            return f"{course.title}: status {status}: {place.sentence()}"
        self.count(name, kind, checked, status)
        if "--against" in course.argv:  # either of the two checks may find it
            return "" if checked or status else "not found, with or without --against"
        if not checked:
            return "fm-verify: not found"
        if status == 0 and place.result(course) != course.want:
            return f"{course.title}: different result"
        if status != 0 and (place.out.exists() or (course.argv[0] + ": ") not in place.sentence()):
            return f"{course.title}: status {status}: incomplete output, or no error message: {place.sentence()}"
        return ""


class Configs(Sweep):
    """A dry run reads all of config.json; if it accepts the file, the real run follows."""

    KINDS = {
        "absent": None, "null": "null", "an object": '{"a": 1}', "a string": '"x"', "a list": "[]", "true": "true",
        "negative": "-1", "zero": "0", "huge": "1e18", "2^31": "2147483648", "a fraction": "1.5", "twice": None,
    }  # fmt: skip
    REFUSED = (65, 66, 78)
    MEMORY = 4 << 20  # KiB of address space

    def plan(self, place):
        models = [GOLDEN / "tiny-mixtral", *sorted(GOLDEN.glob("odd-*")), *sorted((GOLDEN / "packed").iterdir())]
        self.config = {str(m.relative_to(GOLDEN)): json.loads((m / "config.json").read_text()) for m in models}
        self.cases = self.mixed([(model, path, kind) for model, config in self.config.items()
                                 for path in self.paths(config) for kind in self.KINDS])

    def paths(self, value):
        """Yield the path to each key of an object, and to the first element of each list."""
        if isinstance(value, list):
            value = dict(enumerate(value[:1]))
        for key, inner in value.items() if isinstance(value, dict) else ():
            yield (key,)
            yield from ((key, *path) for path in self.paths(inner))

    def text(self, value, path, kind):
        """A value as JSON text, with a fault of this kind at the path; path None: without a fault."""
        if not path or not isinstance(value, (dict, list)):
            return json.dumps(value)
        items = value.items() if isinstance(value, dict) else enumerate(value)
        made = []
        for key, inner in items:
            name = json.dumps(key) + ": " if isinstance(value, dict) else ""
            if key != path[0] or len(path) > 1:
                made.append(name + self.text(inner, path[1:] if key == path[0] else None, kind))
            elif kind == "twice":
                made += [name + json.dumps(inner)] * 2
            elif kind != "absent":
                made.append(name + self.KINDS[kind])
        return ("{%s}" if isinstance(value, dict) else "[%s]") % ", ".join(made)

    def case(self, number, place):
        model, path, kind = self.cases[number]
        made = place.folder / "out.model"
        made.mkdir()
        for file in (GOLDEN / model).glob("model*"):
            (made / file.name).symlink_to(file)
        (made / "config.json").write_text(self.text(self.config[model], path, kind))
        tokens = GOLDEN / model / ("calib.npy" if model == "tiny-mixtral" else "tokens.npy")
        run = f"fm-rank --model out.model --tokens {tokens} --max-tokens 64 --seq-len 16 -T 1 -q --device ref -o out"
        title, what = f"{model}, {'.'.join(map(str, path))}: {kind}", ""
        for command in (run + " -n", run):
            status = place.run(Course("", command), limit=f"-v {self.MEMORY}")
            sentences = [line for line in place.sentence().splitlines() if line.startswith("fm-rank: ")]
            if status == 0 and place.out.exists() == (command == run):
                continue
            if status not in self.REFUSED or len(sentences) != 1 or place.out.exists():
                what = f"{command}: status {status}: {place.sentence()[:400]}"
            break
        return title, what


class Family(Sweep):
    """Of eight cases in a row five are signals, two kill -9, and one starts fm-family twice on one work folder.

    Afterwards the same command must end with status 0 and the bytes of an undisturbed run; a killed parent's
    child may hold the work folder for some time (status 79).
    """

    COMMAND = f"fm-family {MODEL} --tokens {MODEL}/tokens.npy --device ref -T 1 -q -b 0.4 -o out"
    OTHER = f"fm-family {MODEL} --tokens {MODEL}/tokens.npy --device ref -T 1 -q --max-tokens 92 -b 0.4 --work out.work -o out.b"
    SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)

    def plan(self, place):
        self.course = Course("fm-family", self.COMMAND)
        self.other = Course("fm-family, other options", self.OTHER)
        began = time.monotonic()
        status = place.run(self.course)
        self.seconds = time.monotonic() - began
        if status != 0:
            sys.exit(f"fm-family fails without a fault: status {status}: {place.sentence()}")
        self.want = self.made(place)

    @staticmethod
    def made(place):
        """All files of both folders, except the record, which has times and inodes."""
        both = {name: tree(place.folder / name) or {} for name in ("out", "out.work")}
        both["out.work"].pop(".fm-family", None)
        return both

    def begin(self, place, course):
        environment = dict(os.environ, PATH=f"{BUILD}/bin:{os.environ['PATH']}", LC_ALL="C")
        with open(place.folder / "stdout", "wb") as out, open(place.folder / "stderr", "ab") as err:
            return subprocess.Popen(course.argv, cwd=place.folder, env=environment, stdin=subprocess.DEVNULL,
                                    stdout=out, stderr=err, start_new_session=True)

    @staticmethod
    def wait(p):
        try:
            return p.wait(LIMIT)
        except subprocess.TimeoutExpired:
            os.killpg(p.pid, signal.SIGKILL)
            p.wait()
            return "timed out"

    def case(self, number, place):
        chance = random.Random(number)
        (place.folder / "stderr").unlink(missing_ok=True)
        for name in ("out", "out.b", "out.work"):
            remove(place.folder / name)
        return (self.stop if number % 8 < 5 else self.kill if number % 8 < 7 else self.twice)(chance, place)

    def stop(self, chance, place):
        signals = [(chance.choice(self.SIGNALS), chance.uniform(0, 1.1 * self.seconds))]
        if chance.random() < 0.2:
            signals.append((chance.choice(self.SIGNALS), chance.uniform(0, 0.05)))
        group = chance.random() < 0.3
        title = f"{', '.join(f'{s.name} after {t:.4f} s' for s, t in signals)}{' to the group' if group else ''}"
        p = self.begin(place, self.course)
        for sig, after in signals:
            time.sleep(after)
            if p.poll() is None:
                (os.killpg if group else os.kill)(p.pid, sig)
        status = self.wait(p)
        early = not (place.folder / "out.work").exists() and status in [-s for s, _ in signals]
        if status not in (0, 75) and not early:
            return title, f"status {status}: {place.sentence()}"
        if status == 0 and self.made(place) != self.want:
            return title, "status 0, different bytes"
        return title, self.after(place, False)

    def kill(self, chance, place):
        whom, after = chance.choice(("parent", "child", "group")), chance.uniform(0, 1.1 * self.seconds)
        title = f"kill -9 of the {whom} after {after:.4f} s"
        p = self.begin(place, self.course)
        time.sleep(after)
        if p.poll() is None and whom == "group":
            os.killpg(p.pid, signal.SIGKILL)
        elif p.poll() is None:
            with open(f"/proc/{p.pid}/task/{p.pid}/children") as file:
                children = file.read().split()
            for pid in [p.pid] if whom == "parent" else map(int, children[:1]):
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
        status = self.wait(p)
        if status not in ((0, 71) if whom == "child" else (0, -signal.SIGKILL)):
            return title, f"status {status}: {place.sentence()}"
        return title, self.after(place, True)

    def twice(self, chance, place):
        second = chance.choice((self.course, self.other))
        after = chance.uniform(0, 1.1 * self.seconds)
        title = f"{second.title} started {after:.4f} s later"
        p = self.begin(place, self.course)
        time.sleep(after)
        q = self.begin(place, second)
        status = [self.wait(p), self.wait(q)]
        if any(s not in (0, 78, 79) for s in status) or 0 not in status:
            return title, f"statuses {status}: {place.sentence()}"
        if second is self.other and status == [0, 0]:
            return title, "two runs with different options share stages"
        for course, s in ((self.course, status[0]), (second, status[1])):
            if s == 0 and self.wait(self.begin(place, course)) != 0:
                return title, f"again, after statuses {status}: {place.sentence()}"
        return title, self.after(place, False) if status[0] == 0 else ""

    def after(self, place, killed):
        """Run the same command; returns what is wrong, or ''."""
        until = time.monotonic() + LIMIT
        status = self.wait(self.begin(place, self.course))
        while killed and status == 79 and time.monotonic() < until:
            status = self.wait(self.begin(place, self.course))
        if status != 0:
            return f"again: status {status}: {place.sentence()}"
        made = self.made(place)
        if made != self.want:
            return f"again: different files: {sorted(n for k in made for n in made[k] if made[k][n] != self.want[k].get(n))}"
        return f"again: {place.left()} left" if place.left() else ""


KINDS = {"faults": Faults, "kill": Kill, "disk": Disk, "signals": Signals, "readers": Readers, "flips": Flips,
         "family": Family, "configs": Configs}


def sweep(name, places, first, cases, seconds):
    """Run a sweep; returns the number of cases that did not behave as documented."""
    s = KINDS[name](places)
    s.plan(places[0])
    for place in places:
        place.clean()
    end = first + cases if cases is not None else None
    if s.cases is not None:
        end = min(len(s.cases), end if end is not None else len(s.cases))
    until = time.monotonic() + seconds if seconds is not None else None
    free, lock = queue.SimpleQueue(), threading.Lock()
    for place in places:
        free.put(place)
    at, good, bad = first, 0, 0

    def work():
        nonlocal at, good, bad
        place = free.get()
        while True:
            with lock:
                if (end is not None and at >= end) or (until is not None and time.monotonic() >= until):
                    return
                if STOP.is_set():
                    return
                number, at = at, at + 1
            title, what = s.case(number, place)
            place.clean()
            with lock:
                if what:
                    bad += 1
                    print(f"{name}: case {number} ({title}): {' '.join(what.split())}", flush=True)
                else:
                    good += 1

    threads = [threading.Thread(target=work) for _ in places]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    whole = f" of {len(s.cases)}" if s.cases is not None else ""
    more = "" if s.cases is not None and at >= len(s.cases) else f"; continue with --from {at}"
    if isinstance(s, Flips):
        s.table()
    print(f"{name}: {good + bad}{whole} cases: {good} as documented, {bad} not{more}", flush=True)
    return bad


def main():
    parser = argparse.ArgumentParser(usage="sweep.py NAME [--seconds S] [--cases N] [--from N] [-j JOBS] [--limit S]")
    parser.add_argument("name", choices=[*KINDS, "all"])
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--cases", type=int)
    parser.add_argument("--from", type=int, default=0, dest="first")
    parser.add_argument("-j", type=int, default=os.cpu_count(), dest="jobs")
    parser.add_argument("--limit", type=float, default=LIMIT)
    o = parser.parse_args()
    globals()["LIMIT"] = o.limit
    signal.signal(signal.SIGTERM, lambda *_: STOP.set())
    if not FAULTS.exists():
        sys.exit(f"no {FAULTS}; make tests")
    names = KINDS if o.name == "all" else (o.name,)
    bad = 0
    with tempfile.TemporaryDirectory(prefix="fm-sweep-") as scratch:
        first = pathlib.Path(scratch) / "0"
        first.mkdir()
        for command in SETUP + [c for name in names for c in getattr(KINDS[name], "SETUP", [])]:
            subprocess.run(command.split(), cwd=first, check=True, stdout=subprocess.DEVNULL,
                           stderr=subprocess.PIPE, env=dict(os.environ, PATH=f"{BUILD}/bin:{os.environ['PATH']}"))
        places = [Place(first)]
        for i in range(1, o.jobs):
            shutil.copytree(first, pathlib.Path(scratch) / str(i), symlinks=True)
            places.append(Place(pathlib.Path(scratch) / str(i)))
        for i, name in enumerate(names):
            left = o.seconds / len(names) if o.seconds is not None else None
            bad += sweep(name, places, o.first, o.cases, left)
    return bad > 0


if __name__ == "__main__":
    sys.exit(main())
