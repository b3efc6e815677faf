"""Conversions of exports.py that are refused: models that MaxText's trees or GGUF's architectures have no place for."""

OTHER_WAY = "in MaxText's order of layers it is the other way"
NO_PLACE = "the parameter tree has no counterpart for tensor"
SOME_LAYERS = "only some layers of this model have a tensor such as"
REFUSALS = {
    ("maxtext scanned", "qwen3-moe, every second layer"): SOME_LAYERS,
    ("maxtext unrolled", "qwen3-moe, every second layer"): NO_PLACE,
    ("maxtext scanned", "qwen3-moe, layers without experts"): SOME_LAYERS,
    ("maxtext unrolled", "qwen3-moe, layers without experts"): NO_PLACE,
    ("maxtext", "qwen3-moe, window 17, biases"): NO_PLACE,
    ("maxtext", "deepseek-v2, biases"): NO_PLACE,
    ("maxtext", "deepseek-v3, yarn, biases"): NO_PLACE,
    ("maxtext scanned", "gpt-oss without attention biases, full layers first"): "scanned groups of 2",
    ("maxtext unrolled", "gpt-oss without attention biases, full layers first"): OTHER_WAY,
    ("maxtext", "gpt-oss full layers only"): OTHER_WAY,
    ("maxtext scanned", "olmo-3, window 13 on three of four"): "scanned groups of 4",
    ("maxtext", "olmo-3, full layers first"): OTHER_WAY,
    ("maxtext", "olmo-3, no layer with a window"): OTHER_WAY,
    ("maxtext", "olmo-3, window on all layers"): OTHER_WAY,
    ("maxtext", "qwen3-next, dense first layer"): OTHER_WAY,
    ("maxtext", "qwen3-next, every other layer"): OTHER_WAY,
    ("maxtext", "qwen3-next, weights not normalised"): OTHER_WAY,
    ("maxtext scanned", "gemma-4, "): "has no scanned layers",
    ("maxtext unrolled", "gemma-4, "): "windows are on other layers than in MaxText",
    ("maxtext", "gemma-4 without shared keys"): "windows are on other layers than in MaxText",
    ("gguf", "qwen2-moe, normalised"): "'norm_topk_prob': true",
    ("gguf", "qwen2-moe, windows"): "a sliding window",
    ("gguf", "qwen2-moe, every second layer"): "'qkv_bias': false",
    ("gguf", "qwen2-moe, one expert"): "layers without experts",
    ("gguf", "granite-moe, biases"): "biases of the attention",
}
