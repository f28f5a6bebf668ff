"""Writes the results as one JSON object and as Markdown tables."""

import json
import time

from speeds import plan_flags


def gib(value):
    return f"{value / (1 << 30):.3g}" if value is not None else ""


def memlock(limit):
    return "unlimited" if limit is None else f"{limit >> 10} KiB"


def figure(value, form=".3g"):
    return format(value, form) if isinstance(value, (int, float)) else ""


def table(head, rows):
    lines = [head, ["---"] * len(head), *rows]
    clean = [[str(cell).replace("|", "/").replace("\n", " ") for cell in line] for line in lines]
    return ["| " + " | ".join(line) + " |" for line in clean] + [""]


def facts_lines(found):
    machine, torch, disk = found["machine"], found["torch"], found["disk"]
    links, uring = found.get("links", {}), found["io_uring"]
    rows = [
        ["machine", f"{machine['product']} {machine['system']}, Linux {machine['kernel']}"],
        ["processor", f"{machine['cpu']}, {machine['cpus_usable']} usable of {machine['cpus']}"],
        ["DRAM, GiB", f"{gib(machine['dram_bytes'])}, {gib(machine['dram_available_bytes'])} free"],
        ["DRAM copy, GB/s", torch.get("dram_copy_gb_per_s", torch.get("error"))],
        ["disk", f"{disk['file_system']} on {disk['device']}, {gib(disk['free_bytes'])} GiB free"],
        [
            "disk read / write, GB/s",
            disk.get("error")
            or f"{disk['read_gb_per_s']} / {disk['write_gb_per_s']}"
            + ("" if disk["direct"] else " (buffered)"),
        ],
        ["io_uring", uring.get("error") or ("works" if uring["works"] else "not known")],
        ["memlock", memlock(machine["memlock_bytes"])],
        ["compiler, nvcc", f"{found['tools']['c++']}, {found['tools']['nvcc'] or 'none'}"],
        [
            "python, torch",
            f"{found['tools']['python']}, {torch.get('version', torch.get('error'))}",
        ],
        ["driver", found["nvidia_driver"] or "none"],
    ]
    for gpu in found["gpus"]:
        now = f"{gpu['pcie.link.gen.current']} x{gpu['pcie.link.width.current']}"
        best = f"{gpu['pcie.link.gen.max']} x{gpu['pcie.link.width.max']}"
        rows.append([gpu["name"], f"{gpu['memory.total']} MiB, PCIe gen {now} (at most {best})"])
    for key, value in links.items():
        if key.endswith("gb_per_s"):
            rows.append([key.removesuffix("_gb_per_s").replace("_", " ") + ", GB/s", value])
    return table(["fact", "value"], rows)


def sanitize_lines(found):
    rows = [[r["tool"], r["test"], r["status"], r["found"]] for r in found["rows"]]
    return table(["tool", "test", "outcome", "what it says"], rows)


def bench_lines(found):
    shape = found["shape"]
    head = ["trainer", "step, s", "min to max", "rounds", "tokens/s", "against FSDP2"]
    head += ["loss", "device peak, GiB", "host peak, GiB", "NVMe read / write, GB a step"]
    rows = []
    for row in found["rows"]:
        if row["status"] != "ok":
            rows.append([row["words"], f"failed: {row['error']}"] + [""] * (len(head) - 2))
            continue
        nvme = [row.get(f"nvme_{way}_bytes") for way in ("read", "write")]
        rows.append(
            [
                row["words"],
                figure(row["step_s"]),
                f"{figure(row['step_s_min'])} to {figure(row['step_s_max'])}",
                row["rounds"],
                figure(row["tokens_per_s"], ".0f"),
                figure(row.get("speed_up_over_fsdp2"), ".2f"),
                f"{row['loss_first']:.3f} to {row['loss_last']:.3f}",
                gib(row["device_peak_bytes"]),
                gib(row["host_peak_bytes"]),
                " / ".join(f"{n / 1e9:.1f}" for n in nvme if n is not None),
            ]
        )
    what = f"{shape['parameters'] / 1e6:.4g} M parameters, {shape['batch']} x {shape['positions']}"
    return [f"{what} tokens a step, bf16, on {found['device']}.", ""] + table(head, rows)


def profile_lines(found):
    shares = f"busy {found['busy_share']:.0%} of {found['step_s']:.3f} s a step"
    shares += f", copies {found['copy_share']:.0%}"
    what = f"{shares}, {found['launches_a_step']:.0f} launches a step"
    rows = [
        [r["kernel"][:90], figure(r["ms_a_step"]), figure(r["launches"])] for r in found["rows"]
    ]
    return [f"{found['device']}: {what}.", ""] + table(["kernel", "ms a step", "launches"], rows)


def speeds_lines(found):
    rows = [
        [r["threads"], r["waiting"], r["elements_of_region"], figure(r["gb_per_s"])]
        for r in found["rows"]
    ]
    lines = table(["threads", "waiting", "elements of a region", "Adam, GB/s"], rows)
    for what in ("attention", "page_lock", "plan_rates"):
        if what in found:
            lines += [f"{what}: {json.dumps(found[what])}", ""]
    flags = plan_flags(found.get("plan_rates", {}))
    if flags:
        lines += [f"artesian plan --gpus 1 {flags}", ""]
    return lines


DETAILS = {
    "facts": facts_lines,
    "profile": profile_lines,
    "speeds": speeds_lines,
    "sanitize": sanitize_lines,
    "bench": bench_lines,
}


def outcome_row(name, found):
    words = found.get("reason", "")
    if name == "test" and "passed" in found:
        counts = f"{found['passed']} passed, {len(found['failed_tests'])} failed"
        words = f"{counts}, {len(found['skipped'])} skipped; {words}".rstrip("; ")
    if name == "build" and "cuda_kernels" in found:
        words = f"CUDA kernels: {found['cuda_kernels']} {' '.join(found['architectures'])}".strip()
    return [name, found["status"], found["seconds"], words]


def write(folder, context, parts):
    """parts: name -> result, in order."""
    folder.mkdir(parents=True, exist_ok=True)
    made = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
    gpus = (
        f"{context.gpu_count} GPU" if context.gpu_count else "no GPU: what needs one was left out"
    )
    whole = {
        "made": made,
        "gpu_count": context.gpu_count,
        "sources": context.digest,
        "parts": parts,
    }
    (folder / "gpu_check.json").write_text(json.dumps(whole, indent=1) + "\n")
    lines = ["# GPU check", "", f"{made}, {gpus}, sources {context.digest}.", ""]
    lines += table(
        ["part", "outcome", "seconds", ""], [outcome_row(n, f) for n, f in parts.items()]
    )
    for name, found in parts.items():
        if name in DETAILS and ("rows" in found or "machine" in found):
            lines += [f"## {name}", "", *DETAILS[name](found)]
    (folder / "gpu_check.md").write_text("\n".join(lines))
