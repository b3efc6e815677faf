"""Random texts, and texts for training tokenizers."""

import pathlib
import random
import unicodedata

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent

WORDS = ["the", "The", "dog", "dogs", "tokenizer", "I'll", "don't", "we've", "naïve", "café", "ÉCOLE",
         "e\u0301", "Straße", "İstanbul", "ΑΣ", "привет", "日本語", "ひらがな", "カナー", "한국어", "हिन्दी",
         "עברית", "العربية", "ไทย", "ﬁ", "①", "½", "Ⅷ", "１２", "42", "3.14", "x=y+1;", "{}", "<a>", "a_b",
         "__", "...", "?!", "—", "“q”", "😂", "👩‍👩‍👧", "🇩🇪", "é́́", "ǅ", "\u1e9e", "ｶﾞ", "Å", "\ufdfa"]
SPACES = [" ", " ", " ", "  ", "   ", "\t", "\n", "\n\n", "\r\n", "\u00a0", "\u3000", "\u2028",
          "\u200b", "\u200d", "\ufeff", "\u0085", "▁"]


def letters():
    """Characters that every library classifies alike: those of Unicode 3.2."""
    old = unicodedata.ucd_3_2_0
    return [chr(c) for c in range(1, 0x30000)
            if not 0xD800 <= c < 0xE000 and old.category(chr(c)) != "Cn"]


def random_texts(count, seed, extra=()):
    rng = random.Random(seed)
    alphabet = letters()
    low = [c for c in alphabet if ord(c) < 0x250]
    words = WORDS + list(extra) * 3
    texts = ["", " ", "  ", "a", "\n"]
    while len(texts) < count:
        parts = []
        for _ in range(rng.randrange(1, 14)):
            dice = rng.random()
            if dice < 0.45:
                parts.append(rng.choice(words))
            elif dice < 0.70:
                parts.append(rng.choice(SPACES))
            elif dice < 0.85:
                parts.append(rng.choice(low))
            else:
                parts.append(rng.choice(alphabet))
        texts.append("".join(parts))
    return texts


def training_lines():
    """Text of this repository, and words of scripts that it lacks."""
    lines = []
    for pattern in ("README.md", "engine/**/README.md", "server/README.md", "engine/tokenizer/*.h"):
        for path in sorted(ROOT.glob(pattern)):
            lines += [line for line in path.read_text().splitlines() if line.strip()]
    rng = random.Random(7)
    lines += [" ".join(rng.choices(WORDS, k=12)) for _ in range(400)]
    return lines
