"""Writes a small Llama checkpoint whose answers are forced: each token determines the next one.

The embedding of a token is a code of +1 and -1. Attention and MLP add nothing, so the last hidden
state is the code of the last token. The output row of a token is the code of its predecessor in a
script. Codes are nearly orthogonal: the next token of the script wins by thousands, at every
temperature. The pieces of the scripts are unique, since the model knows nothing but the last token.

The chat template chooses a script. `#NAME` in a user message selects it, and the number of assistant
messages since then selects its answer; the last answer repeats. The template renders tools and calls
as Hermes models do. Nothing else is special about the model: it takes the ordinary path.
"""

import json
import pathlib
import random
import struct
import subprocess

CODE_DIMS = 256
# Dimensions that say whether the answer ends after this token.
END_DIMS = 64
GAIN = 64
MAX_CONTEXT = 262144
MIN_PIECE_BYTES = 4
BASE_VOCAB = 2048
BOS, EOS, TURN = "<|begin|>", "<|end|>", "<|turn|>"
ONE, MINUS_ONE, ZERO = b"\x80\x3f", b"\x80\xbf", b"\x00\x00"  # bf16
HERE = pathlib.Path(__file__).resolve().parent
CORPORA = ("README.md", "server/README.md", "server/API.md")


def byte_alphabet():
    """The letter of each byte in byte-level BPE: itself if printable, else one from 256 on."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = {byte: chr(byte) for byte in printable}
    for byte in range(256):
        if byte not in letters:
            letters[byte] = chr(256 + len(letters) - len(printable))
    return letters


def cut(text, taken):
    """Cuts the bytes of a text into pieces that are not taken, and takes them."""
    pieces = []
    begin = 0
    while begin < len(text):
        end = min(begin + MIN_PIECE_BYTES, len(text))
        while end < len(text) and text[begin:end] in taken:
            end += 1
        while text[begin:end] in taken:  # at the end of the text: starts earlier
            last = pieces.pop()
            taken.discard(last)
            begin -= len(last)
        pieces.append(text[begin:end])
        taken.add(pieces[-1])
        begin = end
    return pieces


def write_tokenizer(directory, binary, scripts):
    """Adds the pieces and the start tokens to a trained BPE. Returns (vocabulary size, chains, ids)."""
    corpus = directory / "corpus.txt"
    root = HERE.parents[2]
    corpus.write_text("\n".join((root / name).read_text() for name in CORPORA))
    path = directory / "tokenizer.json"
    subprocess.run([binary, "tokenizer", "train", str(corpus), "--vocab-size", str(BASE_VOCAB),
                    "--special", BOS, "--special", EOS, "--special", TURN, "--out", str(path)],
                   check=True, capture_output=True)
    corpus.unlink()
    tokenizer = json.loads(path.read_text())
    vocab = tokenizer["model"]["vocab"]
    letters = byte_alphabet()
    values = {letter: byte for byte, letter in letters.items()}
    taken = {bytes(values[letter] for letter in token) for token in vocab
             if all(letter in values for letter in token)}
    # Pieces have no merge rule: the tokenizer decodes them, and never encodes a text with them.
    cuts = {(name, stage): cut(answer.encode(), taken)
            for name, answers in scripts.items() for stage, answer in enumerate(answers)}
    ids = {}
    for pieces in cuts.values():
        for piece in pieces:
            ids[piece] = len(vocab)
            vocab["".join(letters[byte] for byte in piece)] = len(vocab)
    size = max(len(vocab), 1 + max(token["id"] for token in tokenizer["added_tokens"]))
    chains = []
    for (name, stage), pieces in cuts.items():
        tokenizer["added_tokens"].append(
            {"id": size, "content": f"[{name}:{stage}]", "single_word": False, "lstrip": False,
             "rstrip": False, "normalized": False, "special": True})
        chains.append([size, *(ids[piece] for piece in pieces)])
        size += 1
    path.write_text(json.dumps(tokenizer))
    special = {token["content"]: token["id"] for token in tokenizer["added_tokens"]}
    return size, chains, special


def write_weights(path, size, chains, eos):
    """Safetensors in bf16."""
    rng = random.Random(7)
    successor = {before: after for chain in chains for before, after in zip(chain, chain[1:])}
    codes = [rng.getrandbits(CODE_DIMS) for _ in range(size)]
    hidden = CODE_DIMS + END_DIMS

    def code_bytes(code, plus=ONE, minus=MINUS_ONE):
        return b"".join(plus if code >> i & 1 else minus for i in range(CODE_DIMS))

    gain = struct.pack("<f", GAIN)[2:]
    minus_gain = struct.pack("<f", -GAIN)[2:]
    big_gain = struct.pack("<f", GAIN * CODE_DIMS / END_DIMS)[2:]
    embedding = b"".join(
        code_bytes(code) + (MINUS_ONE if token in successor else ONE) * END_DIMS
        for token, code in enumerate(codes))
    rows = [ZERO * hidden] * size
    rows[eos] = ZERO * CODE_DIMS + big_gain * END_DIMS
    for before, after in successor.items():
        rows[after] = code_bytes(codes[before], gain, minus_gain) + ZERO * END_DIMS
    # The advantage of the right token over the best wrong one.
    far = max((CODE_DIMS - 2 * bin(codes[a] ^ codes[b]).count("1")
               for a in successor for b in successor if a < b), default=0)
    assert far < CODE_DIMS * 0.6, far

    ffn, head_dim = 64, 32
    layer = "model.layers.0."
    tensors = [("model.embed_tokens.weight", [size, hidden], embedding),
               ("lm_head.weight", [size, hidden], b"".join(rows)),
               ("model.norm.weight", [hidden], ONE * hidden),
               (layer + "input_layernorm.weight", [hidden], ONE * hidden),
               (layer + "post_attention_layernorm.weight", [hidden], ONE * hidden)]
    for name, shape in (("self_attn.q_proj", [head_dim, hidden]),
                        ("self_attn.k_proj", [head_dim, hidden]),
                        ("self_attn.v_proj", [head_dim, hidden]),
                        ("self_attn.o_proj", [hidden, head_dim]), ("mlp.gate_proj", [ffn, hidden]),
                        ("mlp.up_proj", [ffn, hidden]), ("mlp.down_proj", [hidden, ffn])):
        tensors.append((f"{layer}{name}.weight", shape, ZERO * (shape[0] * shape[1])))
    header, at = {}, 0
    for name, shape, data in tensors:
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(data for _, _, data in tensors))
    return {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": size,
            "hidden_size": hidden, "intermediate_size": ffn, "num_hidden_layers": 1,
            "num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": head_dim,
            "max_position_embeddings": MAX_CONTEXT, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
            "hidden_act": "silu", "tie_word_embeddings": False, "torch_dtype": "bfloat16"}


def template(scripts):
    # A name that begins with another one comes after it.
    counts = {name: len(scripts[name]) for name in sorted(scripts, key=len)}
    return (HERE / "template.jinja").read_text().replace("SCRIPTS", json.dumps(counts))


def write(directory, binary, scripts):
    """`scripts`: the answers by name. `plain` is chosen where a chat names none."""
    directory.mkdir(parents=True)
    size, chains, special = write_tokenizer(directory, binary, scripts)
    config = write_weights(directory / "model.safetensors", size, chains, special[EOS])
    config.update(bos_token_id=special[BOS], eos_token_id=special[EOS])
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "tokenizer_config.json").write_text(json.dumps(
        {"bos_token": BOS, "eos_token": EOS, "chat_template": template(scripts)}))
