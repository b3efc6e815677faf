"""Writes tests/golden/quantized: small weights as the libraries of each quantisation method store them.

Each folder is a checkpoint of a few tensors with the `quantization_config` of its method. expected.safetensors
has the weights as those libraries decode them, in f32. Run: quantized.py FOLDER
"""

import json
import os
import sys

import torch
from safetensors.torch import save_file

ROWS, COLUMNS = 40, 96  # outputs, inputs


def write(root, name, config, tensors, expected):
    folder = os.path.join(root, name)
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
        json.dump({"quantization_config": config}, file, indent=2)
        file.write("\n")
    contiguous = {key: value.contiguous() for key, value in tensors.items()}
    save_file(contiguous, os.path.join(folder, "model.safetensors"))
    save_file({key: value.float().contiguous() for key, value in expected.items()},
              os.path.join(folder, "expected.safetensors"))


def normal(*shape):
    return torch.randn(*shape)


def fp8_blocks(root):
    """Blocks of 16 x 32 that do not divide the weight, decoded as transformers' finegrained FP8 does."""
    weight = normal(ROWS, COLUMNS - 10)
    numbers = weight.to(torch.float8_e4m3fn)
    scales = torch.rand(-(-ROWS // 16), -(-(COLUMNS - 10) // 32)) + 0.5
    spread = scales.repeat_interleave(16, 0)[:ROWS].repeat_interleave(32, 1)[:, :COLUMNS - 10]
    write(root, "fp8-blocks", {"quant_method": "fp8", "weight_block_size": [16, 32]},
          {"a.weight": numbers, "a.weight_scale_inv": scales, "a.input_scale": torch.ones(1)},
          {"a.weight": numbers.float() * spread})


def fp8_scales(root):
    numbers = normal(ROWS, COLUMNS).to(torch.float8_e4m3fn)
    rows = torch.rand(ROWS, 1).to(torch.bfloat16)
    one = torch.tensor(0.375)
    config = {"quant_method": "compressed-tensors", "format": "float-quantized",
              "config_groups": {"group_0": {"targets": ["Linear"], "weights": {
                  "num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True}}}}
    write(root, "fp8-rows", config,
          {"a.weight": numbers, "a.weight_scale": rows, "b.weight": numbers.clone(), "b.weight_scale": one,
           "b.bias": normal(ROWS)},
          {"a.weight": numbers.float() * rows.float(), "b.weight": numbers.float() * one})


def mxfp4(root):
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    blocks = torch.randint(0, 256, (3, 8, 2, 16), dtype=torch.uint8)
    scales = torch.randint(118, 134, (3, 8, 2), dtype=torch.uint8)
    decoded = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)  # [experts, inputs, outputs]
    write(root, "mxfp4", {"quant_method": "mxfp4"},
          {"e.up_blocks": blocks, "e.up_scales": scales}, {"e.up_blocks": decoded.transpose(1, 2)})


def words(numbers, bits, axis):
    """Packs integers along an axis into 32-bit words, the lowest bits first."""
    per_word = 32 // bits
    parts = numbers.long().unflatten(axis, (-1, per_word))
    shifts = torch.arange(per_word) * bits
    shape = [1] * parts.dim()
    shape[axis + 1] = per_word
    packed = (parts << shifts.view(shape)).sum(axis + 1)
    return torch.where(packed >= 2**31, packed - 2**32, packed).to(torch.int32)


def awq(root):
    group = 32
    q = torch.randint(0, 16, (COLUMNS, ROWS))
    zeros = torch.randint(0, 16, (COLUMNS // group, ROWS))
    scales = (torch.rand(COLUMNS // group, ROWS) + 0.01).half()
    order = torch.tensor([0, 2, 4, 6, 1, 3, 5, 7])  # output of each nibble

    def pack(numbers):
        return words(numbers.unflatten(1, (-1, 8))[:, :, order].flatten(1), 4, 1)

    decoded = (q - zeros.repeat_interleave(group, 0)) * scales.float().repeat_interleave(group, 0)
    write(root, "awq", {"quant_method": "awq", "bits": 4, "group_size": group, "zero_point": True, "version": "gemm"},
          {"a.qweight": pack(q), "a.qzeros": pack(zeros), "a.scales": scales, "a.bias": normal(ROWS).half()},
          {"a.weight": decoded.T})


def gptq(root, name, bits, symmetric, act_order, version):
    group = 32
    top = 2**bits
    q = torch.randint(0, top, (COLUMNS, ROWS))
    zeros = torch.full((COLUMNS // group, ROWS), top // 2) if symmetric else torch.randint(
        1, top, (COLUMNS // group, ROWS))
    scales = (torch.rand(COLUMNS // group, ROWS) + 0.01).half()
    groups = torch.arange(COLUMNS) // group
    if act_order:
        groups = groups[torch.randperm(COLUMNS)]
    decoded = (q - zeros[groups]) * scales.float()[groups]
    stored = zeros - (1 if version == "gptq" else 0)
    config = {"quant_method": "gptq", "bits": bits, "group_size": group, "sym": symmetric, "desc_act": act_order,
              "checkpoint_format": version}
    write(root, name, config,
          {"a.qweight": words(q, bits, 0), "a.qzeros": words(stored, bits, 1), "a.scales": scales,
           "a.g_idx": groups.to(torch.int32)},
          {"a.weight": decoded.T})


def compressed(root, name, bits, symmetric):
    from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32

    group = 32
    low = -(2**(bits - 1))
    q = torch.randint(low, -low, (ROWS, COLUMNS), dtype=torch.int8)
    scales = (torch.rand(ROWS, COLUMNS // group) + 0.01).to(torch.bfloat16)
    zeros = torch.zeros(ROWS, COLUMNS // group, dtype=torch.int8)
    tensors = {"a.weight_packed": pack_to_int32(q, bits), "a.weight_scale": scales,
               "a.weight_shape": torch.tensor([ROWS, COLUMNS])}
    if not symmetric:
        zeros = torch.randint(low, -low, zeros.shape, dtype=torch.int8)
        tensors["a.weight_zero_point"] = pack_to_int32(zeros, bits, packed_dim=0)
    config = {"quant_method": "compressed-tensors", "format": "pack-quantized",
              "config_groups": {"group_0": {"targets": ["Linear"], "weights": {
                  "num_bits": bits, "type": "int", "strategy": "group", "group_size": group,
                  "symmetric": symmetric}}}}
    spread = [value.float().repeat_interleave(group, 1) for value in (zeros, scales)]
    write(root, name, config, tensors, {"a.weight": (q.float() - spread[0]) * spread[1]})


def bitsandbytes(root):
    import bitsandbytes.functional as functional

    # Its CPU kernel decodes rows that blocks do not divide in another order than its other kernels.
    weight = normal(ROWS, 128)
    tensors, expected = {}, {}
    for module, nested in (("a", False), ("b", True)):
        packed, state = functional.quantize_4bit(weight, blocksize=64, compress_statistics=nested, quant_type="nf4")
        tensors[f"{module}.weight"] = packed
        for key, value in state.as_dict(packed=True).items():
            tensors[f"{module}.weight.{key}"] = value
        expected[f"{module}.weight"] = functional.dequantize_4bit(packed, state)
    scb = weight.abs().amax(1)
    rows = (weight / scb[:, None] * 127).round().to(torch.int8)
    tensors |= {"c.weight": rows, "c.SCB": scb, "c.weight_format": torch.tensor(0, dtype=torch.uint8)}
    expected["c.weight"] = rows.float() * (scb[:, None] * (1 / 127))
    write(root, "bitsandbytes", {"quant_method": "bitsandbytes", "load_in_4bit": True}, tensors, expected)


def main(root):
    torch.manual_seed(7)
    fp8_blocks(root)
    fp8_scales(root)
    mxfp4(root)
    awq(root)
    gptq(root, "gptq", 4, False, False, "gptq")
    gptq(root, "gptq-symmetric", 4, True, False, "gptq")
    gptq(root, "gptq-act-order", 4, False, True, "gptq_v2")
    gptq(root, "gptq-8", 8, True, False, "gptq")
    compressed(root, "compressed-4", 4, True)
    compressed(root, "compressed-4-zeros", 4, False)
    compressed(root, "compressed-8", 8, True)
    bitsandbytes(root)


if __name__ == "__main__":
    main(sys.argv[1])
