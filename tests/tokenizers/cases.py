"""The compared tokenizers: a library builds and saves each, and both sides load it."""

import base64
import functools
import json

import sentencepiece
import tiktoken
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers
from tokenizers import pre_tokenizers, processors, trainers

import texts

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
          r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")


class Case:
    """One tokenizer, as a file and in its library."""

    encode_flags = ("--special",)
    decode_flags = ("--special",)
    random_ids = True
    extra = ()

    def __init__(self, path, encode, decode, vocab_size):
        self.path, self.encode, self.decode, self.vocab_size = path, encode, decode, vocab_size


def json_case(folder, name, tokenizer, random_ids=True, extra=(), hides_space=False):
    path = folder / f"{name}.json"
    path.write_text(tokenizer.to_str())
    loaded = Tokenizer.from_file(str(path))

    def decode(ids):
        text = loaded.decode(ids, skip_special_tokens=False)
        # tandem omits the space that encoding adds before a text.
        return text[1:] if hides_space and text.startswith(" ") else text

    case = Case(path, lambda text: loaded.encode(text, add_special_tokens=False).ids, decode,
                loaded.get_vocab_size())
    case.random_ids, case.extra = random_ids, extra
    return case


def byte_vocabulary():
    return {f"<0x{byte:02X}>": byte for byte in range(256)}


def probe(normalizer=None, pre_tokenizer=None):
    """Its ids are the bytes of every piece and an end mark </w>, so every effect is visible."""
    tokenizer = Tokenizer(models.BPE(vocab=byte_vocabulary(), merges=[], byte_fallback=True,
                                     end_of_word_suffix="</w>"))
    if normalizer:
        tokenizer.normalizer = normalizer
    if pre_tokenizer:
        tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    return tokenizer


def trained(model, trainer, normalizer=None, pre_tokenizer=None, decoder=None):
    tokenizer = Tokenizer(model)
    if normalizer:
        tokenizer.normalizer = normalizer
    if pre_tokenizer:
        tokenizer.pre_tokenizer = pre_tokenizer
    if decoder:
        tokenizer.decoder = decoder
    tokenizer.train_from_iterator(texts.training_lines(), trainer)
    return tokenizer


def changed(tokenizer, change):
    spec = json.loads(tokenizer.to_str())
    change(spec)
    return Tokenizer.from_str(json.dumps(spec))


def normalizer_cases():
    n = normalizers
    yield "nfc", n.NFC()
    yield "nfd", n.NFD()
    yield "nfkc", n.NFKC()
    yield "nfkd", n.NFKD()
    yield "lowercase", n.Lowercase()
    yield "strip", n.Strip()
    yield "strip-left", n.Strip(left=True, right=False)
    yield "strip-accents", n.Sequence([n.NFD(), n.StripAccents()])
    yield "replace", n.Replace("o", "0o")
    yield "replace-gone", n.Replace(" ", "")
    yield "replace-regex", n.Replace(Regex(r"\s+"), " ")
    yield "replace-regex-class", n.Replace(Regex(r"[\p{L}&&]{3}|\d+".replace("&&", "")), "_")
    yield "prepend", n.Prepend("▁")
    yield "nmt", n.Nmt()
    yield "byte-level", n.ByteLevel()
    for clean in (True, False):
        for strip in (True, False, None):
            yield (f"bert-{clean}-{strip}".lower(),
                   n.BertNormalizer(clean_text=clean, handle_chinese_chars=clean,
                                    strip_accents=strip, lowercase=not clean))
    yield "sequence", n.Sequence([n.Nmt(), n.NFKC(), n.Replace(Regex(" {2,}"), " "), n.Strip()])


def pre_tokenizer_cases():
    p = pre_tokenizers
    yield "byte-level", p.ByteLevel(add_prefix_space=False)
    yield "byte-level-space", p.ByteLevel(add_prefix_space=True)
    yield "byte-level-whole", p.ByteLevel(add_prefix_space=False, use_regex=False)
    yield "byte-level-first", p.Sequence([p.ByteLevel(add_prefix_space=False), p.Split("Ġ", "isolated")])
    yield "whitespace", p.Whitespace()
    yield "whitespace-split", p.WhitespaceSplit()
    yield "bert", p.BertPreTokenizer()
    yield "digits", p.Digits()
    yield "digits-each", p.Digits(individual_digits=True)
    yield "delimiter", p.CharDelimiterSplit("o")
    yield "scripts", p.UnicodeScripts()
    yield "length", p.FixedLength(3)
    for behavior in ("removed", "isolated", "merged_with_previous", "merged_with_next", "contiguous"):
        yield f"punctuation-{behavior}", p.Punctuation(behavior)
        for invert in (False, True):
            yield (f"split-{behavior}-{invert}".lower(),
                   p.Split(Regex(r"\s+|[.!?]"), behavior, invert=invert))
        yield f"split-literal-{behavior}", p.Split("o", behavior)
    for scheme in ("always", "first", "never"):
        for split in (True, False):
            yield (f"metaspace-{scheme}-{split}".lower(),
                   p.Metaspace(prepend_scheme=scheme, split=split))
    yield "metaspace-first-behind", p.Sequence([p.WhitespaceSplit(), p.Metaspace(prepend_scheme="first")])
    yield "gpt2-pattern", p.Split(Regex(GPT2), "isolated")
    yield "llama3-pattern", p.Split(Regex(LLAMA3), "isolated")
    yield "sequence", p.Sequence([p.Digits(individual_digits=True), p.Punctuation(), p.WhitespaceSplit()])


def bpe(**options):
    return models.BPE(**options), lambda **more: trainers.BpeTrainer(
        vocab_size=1200, show_progress=False, **more)


def model_cases():
    p, n, d = pre_tokenizers, normalizers, decoders
    alphabet = p.ByteLevel.alphabet()

    def gpt2(space):
        model, trainer = bpe()
        return trained(model, trainer(initial_alphabet=alphabet, special_tokens=["<|endoftext|>"]),
                       None, p.ByteLevel(add_prefix_space=space), d.ByteLevel())

    yield "bpe-gpt2", lambda: gpt2(False), {}
    yield "bpe-gpt2-space", lambda: gpt2(True), {"hides_space": True}

    def llama3():
        model, trainer = bpe()
        tokenizer = trained(
            model, trainer(initial_alphabet=alphabet), n.NFC(),
            p.Sequence([p.Split(Regex(LLAMA3), "isolated"),
                        p.ByteLevel(add_prefix_space=False, use_regex=False)]), d.ByteLevel())
        return changed(tokenizer, lambda spec: spec["model"].update(ignore_merges=True))

    yield "bpe-llama3", llama3, {}

    def llama2(fallback):
        model, trainer = bpe(unk_token="<unk>", fuse_unk=True)
        tokens = ["<unk>", "<s>", "</s>"] + (list(byte_vocabulary()) if fallback else [])
        tokenizer = trained(model, trainer(special_tokens=tokens),
                            n.Sequence([n.Prepend("▁"), n.Replace(" ", "▁")]), None,
                            d.Sequence([d.Replace("▁", " "), d.ByteFallback(), d.Fuse(),
                                        d.Strip(" ", 1, 0)]))

        def change(spec):
            spec["model"]["byte_fallback"] = fallback
            # The byte tokens belong to the model only.
            spec["added_tokens"] = spec["added_tokens"][:3]
        return changed(tokenizer, change)

    yield "bpe-llama2", lambda: llama2(True), {"random_ids": False}
    yield "bpe-llama2-unk", lambda: llama2(False), {}

    def suffix():
        model, trainer = bpe(unk_token="<unk>", end_of_word_suffix="</w>")
        return trained(model, trainer(special_tokens=["<unk>"], end_of_word_suffix="</w>"),
                       n.Lowercase(), p.Whitespace(), d.BPEDecoder())

    yield "bpe-suffix", suffix, {}

    def prefix():
        model, trainer = bpe(unk_token="<unk>", continuing_subword_prefix="##")
        return trained(model, trainer(special_tokens=["<unk>"], continuing_subword_prefix="##"),
                       n.NFC(), p.BertPreTokenizer(), d.WordPiece())

    yield "bpe-prefix", prefix, {}

    def unigram(pre_tokenizer, normalizer=None, fallback=False):
        tokens = ["<unk>", "</s>"] + (list(byte_vocabulary()) if fallback else [])
        tokenizer = trained(
            models.Unigram(), trainers.UnigramTrainer(vocab_size=1500, show_progress=False,
                                                      unk_token="<unk>", special_tokens=tokens),
            normalizer, pre_tokenizer, d.Metaspace())

        def change(spec):
            spec["model"]["byte_fallback"] = fallback
            spec["added_tokens"] = spec["added_tokens"][:2]
            if fallback:
                spec["decoder"] = json.loads(Tokenizer.to_str(llama2(True)))["decoder"]
        return changed(tokenizer, change)

    yield "unigram", lambda: unigram(p.Metaspace()), {}
    yield "unigram-nfkc", lambda: unigram(p.Sequence([p.WhitespaceSplit(), p.Metaspace()]), n.NFKC()), {}
    yield "unigram-whole", lambda: unigram(p.Metaspace(split=False)), {}
    yield "unigram-bytes", lambda: unigram(p.Metaspace(), None, True), {"random_ids": False}

    def word_piece(lowercase, cleanup=True):
        tokenizer = trained(
            models.WordPiece(unk_token="[UNK]", max_input_chars_per_word=20),
            trainers.WordPieceTrainer(vocab_size=1500, show_progress=False,
                                      special_tokens=["[UNK]", "[CLS]", "[SEP]"]),
            n.BertNormalizer(lowercase=lowercase), p.BertPreTokenizer(), d.WordPiece(cleanup=cleanup))
        tokenizer.post_processor = processors.BertProcessing(("[SEP]", 2), ("[CLS]", 1))
        return tokenizer

    yield "wordpiece", lambda: word_piece(True), {}
    yield "wordpiece-cased", lambda: word_piece(False, False), {}
    yield ("wordlevel", lambda: trained(
        models.WordLevel(unk_token="<unk>"),
        trainers.WordLevelTrainer(vocab_size=800, show_progress=False, special_tokens=["<unk>"]),
        None, p.Whitespace()), {})

    def added():
        tokenizer = gpt2(False)
        tokenizer.normalizer = n.Lowercase()
        tokenizer.add_tokens([
            AddedToken("<left>", lstrip=True), AddedToken("<right>", rstrip=True),
            AddedToken("<both>", lstrip=True, rstrip=True, normalized=False),
            AddedToken("whole", single_word=True), AddedToken("whole2", single_word=True, normalized=False),
            AddedToken("e-cole"), AddedToken("<left>x", normalized=False)])
        tokenizer.add_special_tokens([AddedToken("<sp>", lstrip=True), "<sp2>"])
        return tokenizer

    # Names are lower-case ASCII: the library decodes others in normalised form or as bytes.
    yield "added-tokens", added, {"random_ids": False, "extra": [
        "<left>", "<right>", "<both>", "Whole", "E-cole", "whole2", "WHOLE", "<left>x", "<sp>", "<sp2>", "<LEFT>"]}


def decoder_cases():
    d = decoders
    yield "fuse-strip-both", d.Sequence([d.Fuse(), d.Strip(" ", 2, 0)])
    yield "strip-each", d.Strip("a", 1, 0)
    yield "replace-each", d.Replace("th", "TH")
    yield "replace-joined", d.Sequence([d.Fuse(), d.Replace("th", "")])
    yield "replace-regex", d.Replace(Regex("[aeio]+"), "*")
    yield "metaspace-never", d.Metaspace(prepend_scheme="never")
    yield "metaspace-joined", d.Sequence([d.Fuse(), d.Metaspace(prepend_scheme="never")])
    yield "bpe", d.BPEDecoder("e")
    yield "bpe-joined", d.Sequence([d.Fuse(), d.BPEDecoder("th")])
    yield "none", None


def sentencepiece_case(folder, name, **options):
    prefix = folder / name
    prefix.mkdir()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts.training_lines()), model_prefix=str(prefix / "tokenizer"),
        minloglevel=2, hard_vocab_limit=False, **options)
    processor = sentencepiece.SentencePieceProcessor(model_file=str(prefix / "tokenizer.model"))
    case = Case(prefix / "tokenizer.model", processor.encode,
                lambda ids: processor.decode([i for i in ids if i != processor.unk_id()]),
                processor.vocab_size())
    # The library reads control tokens as text. It writes unknown tokens as a sign; here they are
    # special.
    case.encode_flags = case.decode_flags = ()
    case.random_ids = False
    case.extra = options.get("user_defined_symbols", [])
    return case


def sentencepiece_cases():
    for kind in ("bpe", "unigram"):
        for fallback in (True, False):
            yield f"{kind}-bytes-{fallback}".lower(), {
                "model_type": kind, "vocab_size": 1500, "byte_fallback": fallback,
                "normalization_rule_name": "identity", "remove_extra_whitespaces": False}
        yield f"{kind}-nfkc", {"model_type": kind, "vocab_size": 1200}
        yield f"{kind}-nfkc-cf", {"model_type": kind, "vocab_size": 1200, "byte_fallback": True,
                                  "normalization_rule_name": "nmt_nfkc_cf"}
        yield f"{kind}-no-prefix", {"model_type": kind, "vocab_size": 1200, "byte_fallback": True,
                                    "add_dummy_prefix": False, "remove_extra_whitespaces": False}
        yield f"{kind}-user", {"model_type": kind, "vocab_size": 1200, "byte_fallback": True,
                               "remove_extra_whitespaces": False,
                               "user_defined_symbols": ["ÉCO", "dog", "dogma", "①", "_x_"]}


def tiktoken_case(folder, name, pattern, config, normalize=None):
    path = folder / name
    path.mkdir()
    model, trainer = bpe()
    tokenizer = trained(model, trainer(initial_alphabet=pre_tokenizers.ByteLevel.alphabet()), None,
                        pre_tokenizers.ByteLevel(add_prefix_space=False), None)
    to_bytes = {character: byte for byte, character in enumerate(gpt2_alphabet())}
    tokens = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    ranks = {bytes(to_bytes[character] for character in token): rank for token, rank in tokens}
    lines = [f"{base64.b64encode(token).decode()} {rank}\n" for token, rank in ranks.items()]
    (path / "tokenizer.model").write_text("".join(lines))
    (path / "config.json").write_text(json.dumps(config))
    encoding = tiktoken.Encoding(name, pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
    change = normalize.normalize_str if normalize else lambda text: text
    case = Case(path, lambda text: encoding.encode_ordinary(change(text)), encoding.decode, len(ranks))
    case.encode_flags = ()
    return case


def gpt2_alphabet():
    """The character of each byte."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    names, following = [], 256
    for byte in range(256):
        names.append(chr(byte if byte in printable else following))
        following += byte not in printable
    return names


def precompiled(folder):
    """The charsmap of a SentencePiece model: field 2 of field 3."""
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts.training_lines()), model_prefix=str(folder / "charsmap"),
        minloglevel=2, vocab_size=600, hard_vocab_limit=False)

    def field(data, wanted):
        at = 0

        def varint():
            nonlocal at
            value = shift = 0
            while True:
                byte = data[at]
                at += 1
                value |= (byte & 127) << shift
                shift += 7
                if byte < 128:
                    return value
        while at < len(data):
            tag = varint()
            if tag & 7 == 2:
                size = varint()
                if tag >> 3 == wanted:
                    return data[at:at + size]
                at += size
            elif tag & 7 == 0:
                varint()
            else:
                at += 4 if tag & 7 == 5 else 8
        raise KeyError(wanted)

    return normalizers.Precompiled(field(field((folder / "charsmap.model").read_bytes(), 3), 2))


def all_cases(folder):
    """Functions that make the cases, with their names."""
    def named(name, make, *arguments, **options):
        make = functools.partial(make, *arguments, **options)
        make.name = name
        return make

    def probe_case(name, normalizer, pre_tokenizer):
        return json_case(folder, name, probe(normalizer, pre_tokenizer), random_ids=False,
                         hides_space=name.endswith("byte-level-space"))

    for name, normalizer in normalizer_cases():
        yield named(f"normalizer-{name}", probe_case, f"normalizer-{name}", normalizer, None)
    yield named("normalizer-precompiled", lambda: probe_case("precompiled", precompiled(folder), None))
    for name, pre_tokenizer in pre_tokenizer_cases():
        yield named(f"pre-tokenizer-{name}", probe_case, f"pre-tokenizer-{name}", None, pre_tokenizer)
    for name, make, options in model_cases():
        yield named(name, lambda name, make, options: json_case(folder, name, make(), **options),
                    name, make, options)

    def decoder_case(name, decoder):
        model, trainer = bpe(unk_token="<unk>")
        tokenizer = trained(model, trainer(special_tokens=["<unk>"]), None,
                            pre_tokenizers.Metaspace(), decoder)
        return json_case(folder, f"decoder-{name}", tokenizer)

    for name, decoder in decoder_cases():
        yield named(f"decoder-{name}", decoder_case, name, decoder)
    for name, options in sentencepiece_cases():
        yield named(f"sentencepiece-{name}", sentencepiece_case, folder, name, **options)
    yield named("tiktoken-llama3", tiktoken_case, folder, "llama3", LLAMA3, {"model_type": "llama"})
    yield named("tiktoken-qwen", tiktoken_case, folder, "qwen", LLAMA3.replace("{1,3}", ""),
                {"model_type": "qwen"}, normalizers.NFC())
