"""Compares logits of llama.cpp with the golden ones, on GGUF files of `tandem convert`.

`llama_logits.py BINARY [NAME]...`; README.md says which package it needs and what it checks.
"""

import ctypes
import json
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
import xllamacpp.xllamacpp as package

from compare import GOLDEN, read_safetensors

LIMIT = 1e-3  # of the largest logit
PARAMS_BYTES = 4096  # above the size of both structures, which differs between versions


class Params(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_uint8 * PARAMS_BYTES)]


class Batch(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_uint8 * 56)]


def library():
    lib = ctypes.CDLL(package.__file__)
    lib.llama_model_default_params.restype = Params
    lib.llama_context_default_params.restype = Params
    lib.llama_model_load_from_file.restype = ctypes.c_void_p
    lib.llama_model_load_from_file.argtypes = [ctypes.c_char_p, Params]
    lib.llama_init_from_model.restype = ctypes.c_void_p
    lib.llama_init_from_model.argtypes = [ctypes.c_void_p, Params]
    lib.llama_batch_get_one.restype = Batch
    lib.llama_batch_get_one.argtypes = [ctypes.POINTER(ctypes.c_int32), ctypes.c_int32]
    lib.llama_decode.argtypes = [ctypes.c_void_p, Batch]
    lib.llama_get_logits_ith.restype = ctypes.POINTER(ctypes.c_float)
    lib.llama_get_logits_ith.argtypes = [ctypes.c_void_p, ctypes.c_int32]
    lib.llama_free.argtypes = lib.llama_model_free.argtypes = [ctypes.c_void_p]
    lib.llama_backend_init()
    return lib


def exact(params):
    """Keys and values in f32, and attention without f16: its flash form rounds queries.

    The fields have no fixed place. The types of keys and values are the only two neighbouring words
    with GGML_TYPE_F16, 1. The choice of flash attention ends a run of four words with -1, "auto"."""
    words = ctypes.cast(ctypes.pointer(params), ctypes.POINTER(ctypes.c_int32))
    types = [i for i in range(16, 60) if words[i] == 1 and words[i + 1] == 1]
    autos = [i for i in range(4, 60) if all(words[i + k] == -1 for k in range(4))]
    if len(types) != 1 or len(autos) != 1:
        raise SystemExit(f"fields of this version were not found: {types}, {autos}")
    words[types[0]] = words[types[0] + 1] = words[autos[0] + 3] = 0
    return params


def logits_of(lib, path, tokens, vocab, at_once):
    model = lib.llama_model_load_from_file(str(path).encode(), lib.llama_model_default_params())
    if not model:
        return None
    context = lib.llama_init_from_model(model, exact(lib.llama_context_default_params()))
    ids = (ctypes.c_int32 * len(tokens))(*tokens)
    rows = []
    step = len(tokens) if at_once else 1
    for at in range(0, len(tokens), step):
        part = ctypes.cast(ctypes.byref(ids, 4 * at), ctypes.POINTER(ctypes.c_int32))
        if lib.llama_decode(context, lib.llama_batch_get_one(part, step)) != 0:
            raise SystemExit(f"{path}: llama_decode failed")
        rows.append(np.ctypeslib.as_array(lib.llama_get_logits_ith(context, -1), (vocab,)).copy())
    lib.llama_free(context)
    lib.llama_model_free(model)
    return np.stack(rows)


def check(lib, binary, folder, scratch):
    """A line about the model, and whether its logits are equal; None: the family is not in GGUF."""
    path = pathlib.Path(scratch) / f"{folder.name}.gguf"
    run = subprocess.run([binary, "convert", str(folder), str(path), "--to", "gguf", "--dtype", "f32"],
                         capture_output=True, text=True, check=False)
    if run.returncode != 0:
        return f"not in GGUF: {run.stderr.strip().splitlines()[-1]}", None
    said = [line for line in run.stderr.splitlines() if "llama.cpp" in line or "GGUF readers" in line]
    if said:
        return f"not compared: {said[0].strip()}", None
    wanted = read_safetensors(folder / "golden" / "forward.safetensors")
    worst = 0
    for i, sequence in enumerate(json.loads((folder / "golden" / "golden.json").read_text())["sequences"]):
        logits = wanted[f"logits.{i}"]
        rows = logits_of(lib, path, sequence["input_ids"], logits.shape[1], at_once=False)
        if rows is None:
            return "llama.cpp does not load the file", False
        last = logits_of(lib, path, sequence["input_ids"], logits.shape[1], at_once=True)
        largest = float(np.abs(logits).max())
        worst = max(worst, float(np.abs(rows - logits).max()) / largest,
                    float(np.abs(last[0] - logits[-1]).max()) / largest)
    return f"{worst:.1e} of the largest logit", worst <= LIMIT


def main():
    binary, only = sys.argv[1], sys.argv[2:]
    lib = library()
    faults = compared = 0
    with tempfile.TemporaryDirectory() as scratch:
        for folder in sorted(GOLDEN.iterdir()):
            if not (folder / "golden" / "forward.safetensors").exists():
                continue
            if only and not any(name in folder.name for name in only):
                continue
            line, is_equal = check(lib, binary, folder, scratch)
            print(f"{folder.name}: {line}{' WRONG' if is_equal is False else ''}", flush=True)
            compared += is_equal is not None
            faults += is_equal is False
    print(f"{compared} models compared, {faults} faults")
    return 1 if faults or compared == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
