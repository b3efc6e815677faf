#!/usr/bin/env python3
"""Compares our reader and writer of checkpoints with Orbax: `oracle.py TANDEM`.

Needs orbax-checkpoint, tensorstore, flax, jax, optax and safetensors
(`tests/convert/orbax/requirements.txt`). Without them it says so and exits with 77. `tandem
checkpoint ls --sha256` must read checkpoints of Orbax and TensorStore byte for byte. Orbax must
restore checkpoints of `tandem convert --to maxtext` byte for byte.
"""

import hashlib
import itertools
import json
import pathlib
import subprocess
import sys
import tempfile

try:
    import jax
    import jax.numpy as jnp
    import ml_dtypes
    import numpy as np
    import optax
    import orbax.checkpoint as ocp
    import tensorstore as ts
    from flax import nnx
    from safetensors import safe_open
except ImportError as missing:
    print(f"skipped: {missing}; pip install -r tests/convert/orbax/requirements.txt")
    sys.exit(77)

GOLDEN = pathlib.Path(__file__).resolve().parents[3] / "tests/golden"
VARIANTS = list(itertools.product((False, True), (2, 3)))  # OCDBT, zarr
TANDEM = None
done = 0


def tandem(*arguments):
    ran = subprocess.run([TANDEM, *map(str, arguments)], capture_output=True, text=True)
    assert ran.returncode == 0, f"{arguments}: {ran.stderr}"
    return ran.stdout


def passed(what):
    global done
    done += 1
    print(f"ok {what}", flush=True)


def digest(array):
    return hashlib.sha256(np.ascontiguousarray(np.asarray(array)).tobytes()).hexdigest()


def keys_of(path):
    return [str(getattr(key, "key", getattr(key, "idx", getattr(key, "name", None)))) for key in path]


def digests_of(tree):
    return {".".join(keys_of(path)): (list(np.shape(leaf)), digest(leaf))
            for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]}


def listed(path):
    leaves = json.loads(tandem("checkpoint", "ls", "--json", "--sha256", path))["leaves"]
    return {leaf["name"]: (leaf["shape"], leaf["sha256"]) for leaf in leaves if "sha256" in leaf}


def linen_tree(seed):
    rng = np.random.default_rng(seed)

    def normal(*shape, dtype=jnp.float32):
        return jnp.asarray(rng.standard_normal(shape), jnp.float32).astype(dtype)

    layers = {"mlp": {"wi_0": {"kernel": normal(24, 3, 40)}, "wo": {"kernel": normal(40, 3, 24, dtype=jnp.bfloat16)}},
              "self_attention": {"query": {"kernel": normal(24, 3, 2, 8, dtype=jnp.bfloat16)}},
              "norm": {"scale": normal(24, 3)}}
    params = {"params": {"token_embedder": {"embedding": normal(97, 24)}, "decoder": {"layers": layers}}}
    adamw = optax.adamw(optax.linear_schedule(1e-3, 0, 10))
    return {"params": params, "opt_state": adamw.init(params), "step": jnp.asarray(seed, jnp.int32), "int": 3, "real": 2.5,
            "half": normal(5, dtype=jnp.float16), "numpy": np.arange(300, dtype=np.int16).reshape(3, 100),
            "flags": jnp.asarray([True, False]), "list": [normal(2), normal(3, 3)], "nothing": None, "empty": {}}


def nnx_tree(seed):
    class Block(nnx.Module):
        def __init__(self, rngs):
            self.linear = nnx.Linear(12, 20, rngs=rngs)
            self.norm = nnx.LayerNorm(20, rngs=rngs)
            self.dropout = nnx.Dropout(0.1, rngs=rngs)

    state = nnx.state(Block(nnx.Rngs(seed)), nnx.Param)
    return nnx.to_pure_dict(state)


def write(path, tree, ocdbt, zarr, chunk_bytes=None, sharded=False):
    if sharded:
        mesh = jax.sharding.Mesh(np.array(jax.devices()[:4]), ("d",))
        where = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("d"))
        tree = jax.tree.map(lambda leaf: jax.device_put(leaf, where) if np.ndim(leaf) and leaf.shape[0] % 4 == 0 else leaf, tree)
    save_args = jax.tree.map(lambda _: ocp.SaveArgs(chunk_byte_size=chunk_bytes), tree) if chunk_bytes else None
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler(use_ocdbt=ocdbt, use_zarr3=zarr == 3)) as checkpointer:
        checkpointer.save(path, args=ocp.args.PyTreeSave(tree, save_args=save_args))


def theirs_is_read(root):
    for (ocdbt, zarr), (name, make), chunk_bytes, sharded in itertools.product(
            VARIANTS, (("linen", linen_tree), ("nnx", nnx_tree)), (None, 200), (False, True)):
        path = root / f"theirs-{name}-{ocdbt}-{zarr}-{chunk_bytes}-{sharded}"
        tree = make(7)
        write(path, tree, ocdbt, zarr, chunk_bytes, sharded)
        assert listed(path) == digests_of(tree), path
        passed(f"read: {name}, ocdbt {ocdbt}, zarr {zarr}, chunks of {chunk_bytes}, sharded {sharded}")


def standard_is_read(root):
    tree = linen_tree(9)
    del tree["nothing"]
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(root / "standard", tree)
    assert listed(root / "standard") == digests_of(tree)
    passed("read: StandardCheckpointer")


def deep_is_read(root):
    """Databases of many nodes and versions."""
    for node_bytes, inline_bytes in itertools.product((300, 2000), (0, 40, 1024)):
        path = root / f"deep-{node_bytes}-{inline_bytes}"
        store = ts.KvStore.open({"driver": "ocdbt", "base": f"file://{path}/",
                                 "config": {"max_decoded_node_bytes": node_bytes, "max_inline_value_bytes": inline_bytes}}).result()
        values = {}
        for i in range(60):
            value = np.random.default_rng(i).standard_normal((i % 7 + 1, 30)).astype(np.float32)
            spec = {"driver": "zarr3", "kvstore": {"driver": "ocdbt", "base": f"file://{path}/", "path": f"a.{i}/"},
                    "metadata": {"chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2, 7]}}}}
            ts.open(spec, dtype=ts.float32, shape=value.shape, create=True).result().write(value).result()
            values[f"a.{i}"] = (list(value.shape), digest(value))
        del store
        assert listed(path) == values, path
        passed(f"read: nodes of {node_bytes} bytes, values up to {inline_bytes} in them")


def golden(name):
    with safe_open(GOLDEN / "maxtext" / f"{name}.safetensors", "np") as file:
        return {key: file.get_tensor(key) for key in file.keys()}


def tree_of(leaves):
    tree = {}
    for name, leaf in leaves.items():
        at = tree
        *path, last = ["params", *name.split("-")]
        for key in path:
            at = at.setdefault(key, {})
        at[last] = leaf
    return tree


PAIRS = [("gemma2-tiny", "gemma2-tiny.maxtext-gemma2-2b.scanned", []), ("gemma2-tiny", "gemma2-tiny.maxtext-gemma2-2b.unscanned", ["--unroll"]),
         ("llama3-tiny-rope-scaling", "llama3-tiny-rope-scaling.maxtext-llama3.1-8b.scanned", []),
         ("llama3-tiny-rope-scaling", "llama3-tiny-rope-scaling.maxtext-llama3-8b.scanned", ["--maxtext-model", "llama3-8b"]),
         ("qwen3-tiny", "qwen3-tiny.maxtext-qwen3-8b.unscanned", ["--unroll"])]


def restored(path):
    """Restores like other programs: the whole tree, an abstract tree, and a step of a manager."""
    items = path / "0/items"
    tree = ocp.PyTreeCheckpointer().restore(items)
    abstract = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(np.shape(leaf), np.asarray(leaf).dtype), tree["params"])
    with ocp.StandardCheckpointer() as checkpointer:
        whole = dict(tree, params=abstract)
        again = checkpointer.restore(items, whole)
    with ocp.CheckpointManager(path, item_names=("items",)) as manager:
        assert manager.latest_step() == 0
        third = manager.restore(0, args=ocp.args.Composite(items=ocp.args.PyTreeRestore()))["items"]
        custom = manager.metadata(0).custom_metadata
    wanted = digests_of(tree["params"])
    assert digests_of(again["params"]) == wanted and digests_of(third["params"]) == wanted
    # Like MaxText: JAX arrays on the devices of a mesh.
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:2]), ("d",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    arguments = jax.tree.map(lambda _: ocp.ArrayRestoreArgs(sharding=sharding), tree)
    on_devices = ocp.PyTreeCheckpointer().restore(items, restore_args=arguments)
    assert digests_of(on_devices["params"]) == wanted
    assert int(tree["step"]) == 0 and tree["opt_state"] == {}
    return tree, custom


def ours_is_restored(root):
    for (ocdbt, zarr), (model, name, flags) in itertools.product(VARIANTS, PAIRS):
        path = root / f"ours-{name}-{ocdbt}-{zarr}"
        tandem("convert", GOLDEN / model, path, "--to", "maxtext", "--dtype", "f32", "--zarr", zarr, "--ocdbt" if ocdbt else "--no-ocdbt", *flags)
        tree, custom = restored(path)
        assert custom["scan_layers"] == ("--unroll" not in flags)
        assert digests_of(tree["params"]) == digests_of(tree_of(golden(name))["params"]), path
        passed(f"restored: {name}, ocdbt {ocdbt}, zarr {zarr}")
    for model in ("gemma2-tiny", "gemma3-text-tiny", "qwen3-tiny"):  # bf16 beside f32
        path = root / f"ours-{model}-bf16"
        tandem("convert", GOLDEN / model, path, "--to", "maxtext")
        tree, _ = restored(path)
        ours = {name: value for name, value in listed(path).items() if name.startswith("params.")}
        assert ours == {f"params.{name}": value for name, value in digests_of(tree["params"]).items()}
        assert {np.asarray(leaf).dtype for leaf in jax.tree.leaves(tree["params"])} <= {np.dtype(np.float32), np.dtype(ml_dtypes.bfloat16)}
        passed(f"restored: {model} in bf16")


def theirs_is_converted(root):
    """A checkpoint that Orbax wrote from MaxText's parameters converts back to their model."""
    for (ocdbt, zarr), (model, name, flags) in itertools.product(VARIANTS, PAIRS):
        path, out = root / f"trained-{name}-{ocdbt}-{zarr}", root / f"hf-{name}-{ocdbt}-{zarr}"
        params = tree_of(golden(name))["params"]
        state = {"params": params, "opt_state": optax.adamw(1e-3).init(params), "step": 0}
        with ocp.CheckpointManager(path, item_names=("items",), item_handlers={
                "items": ocp.PyTreeCheckpointHandler(use_ocdbt=ocdbt, use_zarr3=zarr == 3)}) as manager:
            manager.save(3, args=ocp.args.Composite(items=ocp.args.PyTreeSave(state)))
        tandem("convert", path, out, "--base", GOLDEN / model, *[flag for flag in flags if flag != "--unroll"])
        ours, theirs = listed(out), listed(GOLDEN / model)
        assert ours == theirs, path
        passed(f"converted: {name}, ocdbt {ocdbt}, zarr {zarr}")


def main():
    global TANDEM
    TANDEM = sys.argv[1]
    with tempfile.TemporaryDirectory() as root:
        root = pathlib.Path(root)
        for check in (theirs_is_read, standard_is_read, deep_is_read, ours_is_restored, theirs_is_converted):
            check(root)
    print(f"{done} checkpoints; orbax {ocp.__version__}, tensorstore {getattr(ts, '__version__', '')}, jax {jax.__version__}")


if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", 4)
    main()
