"""Checkpoints of format version 1 for tests, written by code of the tests alone: split master
weights, parameters cut over several files, frozen ones, buffers; and recorded checkpoints."""

import hashlib
import json
import pathlib
import tarfile

import numpy as np

from artesian.checkpoint import writer, zero_to_fp32

RECORDED = pathlib.Path(__file__).parent / "checkpoints"


def unpack(name, folder):
    with tarfile.open(RECORDED / f"{name}.tar.xz") as archive:
        if hasattr(tarfile, "data_filter"):  # Debian 12 has Python 3.11.2, which lacks data_filter
            archive.extractall(folder, filter="data")
        else:
            archive.extractall(folder)
    return folder


def split_of(master, moment):
    """Splits finite fp32 weights as kernels/split_master.h does: high, low, signed moment."""
    bits = master.view("<u4")
    tie_down = (bits & 0x1FFFF) == 0x8000
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    signed = moment.view("<u4") | np.where(tie_down, np.uint32(0x80000000), np.uint32(0))
    return rounded.astype("<u2"), bits.astype("<u2"), signed.astype("<u4").view("<f4")


class MadeUp:
    """A training state: parameter "w" of two dimensions, split and cut over two files; "frozen" in
    BF16."""

    def __init__(self, seed=1, numel=2 * 2048 + 60):
        random = np.random.default_rng(seed)
        self.numel = numel
        bits = random.integers(0, 1 << 32, numel, dtype=np.uint32) & np.uint32(0xBF7FFFFF)
        bits[::3] = (bits[::3] & np.uint32(0xFFFF0000)) | np.uint32(0x8000)  # ties
        self.master = bits.view("<f4")
        self.exp_avg = random.standard_normal(numel).astype("<f4")
        self.exp_avg_sq = random.random(numel).astype("<f4")
        self.exp_avg_sq[::5] = 0.0
        self.frozen = random.integers(0, 1 << 16, 33, dtype=np.uint16) & np.uint16(0xBF7F)
        self.scale = np.array([1.5, -2.0], "<f4")

    def arrays(self):
        high, low, signed = split_of(self.master, self.exp_avg_sq)
        return {"fp32_high": high, "fp32_low": low, "exp_avg": self.exp_avg} | {
            "exp_avg_sq_signed": signed
        }

    def write(self, directory, tag="global_step7", step=7):
        """Writes DIRECTORY/TAG and `latest`; a rank's file has half of the elements."""
        folder = directory / tag
        folder.mkdir(parents=True)
        identity = 0x1234567890ABCDEF + step
        cut = 2048
        files, parts = [], {}
        for rank, (first, end) in enumerate([(0, cut), (cut, self.numel)]):
            pieces = [(name, data[first:end]) for name, data in self.arrays().items()]
            if rank == 0:
                pieces += [("weight", self.frozen), ("buffer", self.scale)]
            files.append(self._write_file(folder, rank, step, identity, pieces, first, parts))
        self._write_manifest(folder, identity, step, files, parts)
        (directory / "latest").write_text(tag)
        return directory

    def _write_file(self, folder, rank, step, identity, pieces, first, parts):
        dtypes = {"<u2": "I16", "<f4": "F32"}
        tensors, data = [], bytearray()
        for name, values in pieces:
            dtype = {"fp32_high": "BF16", "weight": "BF16"}.get(name, dtypes[values.dtype.str])
            row = [{"weight": 1, "buffer": -1}.get(name, 0), first, values.size, rank, len(data)]
            parts.setdefault((name, dtype), []).append(row)
            tensors.append((f"{name}/{rank}", dtype, (values.size,), values.nbytes))
            data += values.tobytes()
            gap = -len(data) % 4096
            tensors.append((f"~{len(tensors)}", "U8", (gap,), gap))
            data += bytes(gap)
        head = zero_to_fp32.safetensors_header([t for t in tensors if t[3]], 4096)
        for rows in parts.values():
            for row in rows:
                row[4] += len(head) if row[3] == rank else 0
        record = zero_to_fp32.DataFile(
            f"rank{rank}.safetensors", 0, 0, "", "", (identity, rank, step)
        )
        blocks = [bytes(data[at : at + 8192]) for at in range(0, len(data), 8192)]
        sums = bytearray(b"ARTSUMS1" + len(blocks).to_bytes(8, "little"))
        for number, block in enumerate(blocks):
            total = zero_to_fp32.block_sum(record.seed_of(number), np.frombuffer(block, np.uint8))
            sums += total.to_bytes(8, "little") + len(block).to_bytes(8, "little")
        (folder / record.name).write_bytes(head + data)
        (folder / f"rank{rank}.sums").write_bytes(sums)
        return {
            "name": record.name,
            "rank": rank,
            "node": "",
            "bytes": len(head) + len(data),
            "head_bytes": len(head),
            "head_digest": writer.digest(head),
            "sums_digest": writer.digest(bytes(sums)),
            "sums_of": {"id": f"{identity:016x}", "step": step, "rank": rank},
        }

    def _write_manifest(self, folder, identity, step, files, parts):
        buffer = parts.pop(("buffer", "F32"))[0]
        arrays = [
            {
                "array": name,
                "role": zero_to_fp32.ARRAYS[name][0],
                "encoding": zero_to_fp32.ARRAYS[name][1],
                "dtype": dtype,
                "parts": rows,
            }
            for (name, dtype), rows in parts.items()
        ]
        group = {"optimizer": "adamw", "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.1}
        scaler = {"scale": 1.0, "hysteresis_left": 1, "iteration": 0, "overflow_last": -1}
        state = {"step": step, "updates": step, "skipped_in_a_row": 0, "loss_scaler": scaler}
        content = {
            "version": 1,
            "id": f"{identity:016x}",
            "state": state | {"random": {}},
            "groups": [group | {"lr": 1e-3, "step": step, "parameters": [0]}],
            "files": files,
            "aliases": {"head": "w"},
            "excluded": [],
            "parameters": [
                {"name": "w", "shape": [4, self.numel // 4]},
                {"name": "frozen", "shape": [33], "trainable": False},
            ],
            "buffers": [
                {"name": "scale", "dtype": "F32", "shape": [2], "file": 0, "offset": buffer[4]}
            ],
            "arrays": arrays,
        }
        seal(folder / "manifest.json", content)


def seal(path, content):
    """Writes a manifest with its checksum."""
    before = json.dumps(content, separators=(",", ":"))[:-1].encode() + b',"checksum":"'
    path.write_bytes(before + writer.digest(before).encode() + b'"}')


def digest_of_files(folder):
    """Returns a digest of all files below a folder, to see that nothing was changed."""
    total = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            total.update(str(path.relative_to(folder)).encode() + path.read_bytes())
    return total.hexdigest()
