"""The output of a benchmark's part: results, ratios and tables; see Report.write for the files.

A result is one dictionary, and one line of bench/out/PART.jsonl:

    name, parameters   what was measured
    bytes              moved by one repeat; null if not meaningful
    seconds            of a repeat: min, median, max, and `all` in the order of measuring
    direct             whether files were opened with O_DIRECT; null without files
    file_system, device, commit, configuration     where; `configuration` is a hash of name and
                       parameters, by which lines of different runs are matched

and further fields of the part."""

import hashlib
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]


def say(message):
    print(f"bench: {message}", file=sys.stderr, flush=True)


def summary(values):
    values = list(values)
    spread = {"min": min(values), "median": statistics.median(values), "max": max(values)}
    return spread | {"all": values}


def paired_ratio(numerators, denominators):
    """Summary of quotients of pairs measured back to back, in which drift of the machine
    cancels."""
    if len(numerators) != len(denominators):
        raise ValueError(f"{len(numerators)} and {len(denominators)} repeats are not pairs")
    return summary(a / b for a, b in zip(numerators, denominators))


def median_ratio(numerators, denominators):
    """Quotient of medians, for repeats that are not pairs; min and max are the extreme
    quotients."""
    return {
        "min": min(numerators) / max(denominators),
        "median": statistics.median(numerators) / statistics.median(denominators),
        "max": max(numerators) / min(denominators),
    }


def spread(values, digits=2):
    """Formats a table cell: median (min..max)."""
    low, middle, high = (f"{values[key]:.{digits}f}" for key in ("min", "median", "max"))
    return f"{middle} ({low}..{high})"


def markdown(header, rows):
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def commit():
    command = ["git", "-C", ROOT, "describe", "--always", "--dirty"]
    done = subprocess.run(command, capture_output=True, text=True)
    return done.stdout.strip() or "unknown"


def mount_of(folder):
    """(device, file system) of the folder."""
    folder = os.path.realpath(folder)
    best = ("", "unknown", "unknown")
    for line in pathlib.Path("/proc/self/mounts").read_text().splitlines():
        device, point, kind = line.split()[:3]
        inside = point == "/" or folder == point or folder.startswith(point + "/")
        if inside and len(point) >= len(best[0]):
            best = (point, device, kind)
    return best[1], best[2]


def machine():
    processor = "unknown"
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            processor = line.split(":", 1)[1].strip()
            break
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "processor": processor,
        "cores": os.cpu_count(),
        "memory_bytes": memory,
        "kernel": platform.release(),
    }


class Report:
    """The results of one part. `folder`: where its files are, to record their disk."""

    def __init__(self, part, folder):
        self.part = part
        self.results, self.ratios, self.notes, self.tables = [], [], [], []
        self.commit = commit()
        self.device, self.file_system = mount_of(folder)
        self.started = time.time()

    def add(self, name, parameters, seconds, moved=None, direct=None, **more):
        key = json.dumps([name, parameters], sort_keys=True)
        result = {
            "name": name,
            "parameters": parameters,
            "bytes": moved,
            "seconds": summary(seconds),
            "direct": direct,
            "file_system": self.file_system,
            "device": self.device,
            "commit": self.commit,
            "configuration": hashlib.sha256(key.encode()).hexdigest()[:16],
        }
        self.results.append(result | more)
        return self.results[-1]

    def ratio(self, name, values, aim=None):
        """`name` describes the quotient; `aim`: its target, if any."""
        self.ratios.append({"name": name, **values, "aim": aim})
        return values

    def table(self, title, header, rows):
        self.tables.append(f"{title}\n\n{markdown(header, rows)}\n")
        print(f"\n{self.tables[-1]}", flush=True)

    def note(self, text):
        """Adds a remark, such as what is missing, that readers of the tables need."""
        self.notes.append(text)
        say(f"{self.part}: {text}")

    def as_json(self):
        return {
            "part": self.part,
            "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.started)),
            "took_seconds": round(time.time() - self.started, 1),
            "commit": self.commit,
            "machine": machine(),
            "notes": self.notes,
            "ratios": self.ratios,
            "results": self.results,
        }

    def write(self, folder):
        """Writes PART.json with everything, PART.jsonl with a line per result, and PART.md with the
        tables."""
        folder = pathlib.Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{self.part}.json").write_text(json.dumps(self.as_json(), indent=1) + "\n")
        lines = "".join(json.dumps(result) + "\n" for result in self.results)
        (folder / f"{self.part}.jsonl").write_text(lines)
        aims = [
            [ratio["name"], spread(ratio), ratio["aim"] or ""]
            for ratio in self.ratios
        ]  # fmt: skip
        parts = [*self.tables]
        if aims:
            parts.append(markdown(["ratio", "median (min..max)", "aim"], aims) + "\n")
        parts += [f"- {note}\n" for note in self.notes]
        (folder / f"{self.part}.md").write_text("\n".join(parts))
        if aims:
            print("\n" + markdown(["ratio", "median (min..max)", "aim"], aims) + "\n", flush=True)
