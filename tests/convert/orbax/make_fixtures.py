#!/usr/bin/env python3
"""Writes the checkpoints of `tests/convert/orbax/fixtures`: `make_fixtures.py DIR`.

Needs orbax-checkpoint, jax, optax and tensorstore; the committed fixtures are from 0.12.8, 0.10.2,
0.2.8 and 0.1.86. Every directory is one checkpoint. `expected.json` has dtype, shape and SHA-256 of
the bytes of every leaf.
"""

import hashlib
import json
import pathlib
import shutil
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import tensorstore as ts


def tree():
    """MaxText's tree (parameters, AdamW's state, a step) and other kinds of leaves."""
    rng = np.random.default_rng(1)

    def normal(*shape, dtype=np.float32):
        return jnp.asarray(rng.standard_normal(shape).astype(np.float32)).astype(dtype)

    params = {"params": {
        "token_embedder": {"embedding": normal(24, 8)},
        "decoder": {
            "layers": {"mlp": {"wi_0": {"kernel": normal(8, 2, 12)}},
                       "self_attention": {"query": {"kernel": normal(8, 2, 2, 4, dtype=jnp.bfloat16)}}},
            "decoder_norm": {"scale": normal(8, dtype=jnp.bfloat16)}}}}
    return {"params": params, "opt_state": optax.adamw(1e-3).init(params),
            "step": jnp.asarray(7, jnp.int32), "scalar": 3,
            "numpy": np.arange(6, dtype=np.int8).reshape(2, 3), "zeros": jnp.zeros((3, 2)),
            "rng": jnp.arange(4, dtype=jnp.uint32), "list": [normal(3), normal(2, 2)],
            "nothing": None, "empty": {}}


def leaves_of(tree):
    leaves = {}
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
        keys = [str(getattr(key, "key", getattr(key, "idx", getattr(key, "name", None)))) for key in path]
        array = np.asarray(leaf)
        leaves[".".join(keys)] = {"dtype": str(array.dtype), "shape": list(array.shape),
                                  "sha256": hashlib.sha256(array.tobytes()).hexdigest()}
    return leaves


def orbax_variants(root):
    expected = {}
    for ocdbt in (False, True):
        for zarr3 in (False, True):
            name = ("ocdbt" if ocdbt else "files") + ("_zarr3" if zarr3 else "_zarr2")
            values = tree()
            handler = ocp.PyTreeCheckpointHandler(use_ocdbt=ocdbt, use_zarr3=zarr3)
            args = ocp.args.PyTreeSave(values)
            if name == "ocdbt_zarr3":
                # Arrays of several chunks.
                small = jax.tree.map(lambda _: ocp.SaveArgs(chunk_byte_size=96), values)
                args = ocp.args.PyTreeSave(values, save_args=small)
            with ocp.Checkpointer(handler) as checkpointer:
                checkpointer.save(root / name, args)
            shutil.rmtree(root / name / "descriptor", ignore_errors=True)
            expected[name] = leaves_of(values)
    return expected


def managed(root):
    """Steps of a CheckpointManager, as in a training run."""
    values = tree()
    with ocp.CheckpointManager(root / "steps", item_names=("items",)) as manager:
        for step in (0, 10):
            values["step"] = jnp.asarray(step, jnp.int32)
            manager.save(step, args=ocp.args.Composite(items=ocp.args.PyTreeSave(values)))
    return {"steps": leaves_of(values)}


def deep(root):
    """A database with inner nodes that have values; arrays cut into shards and chunks."""
    path = root / "deep"
    ts.KvStore.open({"driver": "ocdbt", "base": f"file://{path}/",
                     "config": {"max_decoded_node_bytes": 300, "max_inline_value_bytes": 40}}).result()
    values = {}
    transaction = ts.Transaction()
    for i in range(8):
        values[f"layer_{i}.w"] = np.arange(1, 31, dtype=np.float32).reshape(5, 6) * (i + 1)
    spec = {"driver": "zarr3", "metadata": {"chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [4, 4]}}}}
    sharding = [{"name": "sharding_indexed", "configuration": {
        "chunk_shape": [2, 2], "codecs": [{"name": "bytes", "configuration": {"endian": "little"}},
                                          {"name": "zstd", "configuration": {"level": 1}}]}}]
    for i, (name, value) in enumerate(values.items()):
        metadata = dict(spec["metadata"], codecs=sharding) if i % 2 else spec["metadata"]
        array = ts.open({"driver": "zarr3", "kvstore": {"driver": "ocdbt", "base": f"file://{path}/",
                                                        "path": f"{name}/"}, "metadata": metadata},
                        dtype=ts.float32, shape=[5, 6], create=True, transaction=transaction).result()
        array.write(value).result()
    transaction.commit_sync()
    return {"deep": {name: {"dtype": "float32", "shape": [5, 6],
                            "sha256": hashlib.sha256(value.tobytes()).hexdigest()}
                     for name, value in values.items()}}


def main():
    root = pathlib.Path(sys.argv[1]).absolute()
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    expected = {**orbax_variants(root), **managed(root), **deep(root)}
    for marker in root.rglob("commit_success.txt"):
        marker.unlink()  # contains the path of this machine
    (root / "expected.json").write_text(json.dumps(expected, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
