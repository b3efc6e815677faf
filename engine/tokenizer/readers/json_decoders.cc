#include <charconv>

#include "engine/tokenizer/readers/json_components.h"
#include "engine/tokenizer/text/unicode.h"

namespace tandem::engine {
namespace {

std::string ReplaceAll(std::string text, std::string_view from, std::string_view to) {
  size_t at = text.find(from);
  if (at == std::string::npos) return text;
  std::string out;
  size_t done = 0;
  for (; at != std::string::npos; at = text.find(from, done)) {
    out.append(text, done, at - done).append(to);
    done = at + from.size();
  }
  return out.append(text, done);
}

// Returns the byte of a spelling such as "<0x41>".
std::optional<char> FallbackByte(std::string_view spelling) {
  if (spelling.size() != 6 || !spelling.starts_with("<0x") || spelling[5] != '>') {
    return std::nullopt;
  }
  unsigned value = 0;
  const auto [end, error] =
      std::from_chars(spelling.data() + 3, spelling.data() + 5, value, /*base=*/16);
  if (error != std::errc() || end != spelling.data() + 5) return std::nullopt;
  return static_cast<char>(value);
}

bool IsOneCharacter(std::string_view text) {
  return !text.empty() && NextUtf8(text).size == text.size();
}

// Adds a step for single tokens. After a step that makes bytes, tokens are parts of characters, so
// only rules for the joined text may follow.
void AddStep(const Field& field, Decoder::Step step, DecoderSpec& spec) {
  if (spec.fused || spec.to_bytes) {
    field.Unsupported(
        "after ByteFallback, ByteLevel or Fuse is not supported: move it in front of them");
  }
  spec.decoder.steps.push_back(std::move(step));
  spec.has_other_steps = true;
}

void ReadSequence(const Field& field, DecoderSpec& spec) {
  for (const Field& item : field.At("decoders").Items()) ReadDecoder(item, spec);
}

void ReadByteLevel(const Field& field, DecoderSpec& spec) {
  const bool other = spec.has_other_steps;
  AddStep(
      field,
      [](std::string token, TokenPlace) {
        auto bytes = BytesOfSpelling(token);
        return bytes ? std::move(*bytes) : std::move(token);
      },
      spec);
  spec.has_other_steps = other;
  spec.is_byte_level = !other;
  spec.to_bytes = spec.fused = true;
}

void ReadByteFallback(const Field& field, DecoderSpec& spec) {
  AddStep(
      field,
      [](std::string token, TokenPlace) {
        const auto byte = FallbackByte(token);
        return byte ? std::string(1, *byte) : std::move(token);
      },
      spec);
  spec.to_bytes = true;
}

void ReadFuse(const Field&, DecoderSpec& spec) { spec.fused = true; }

void ReadReplace(const Field& field, DecoderSpec& spec) {
  const Field pattern = field.At("pattern");
  std::string to(field.At("content").String());
  if (pattern.Find("String")) {
    std::string from = ReadLiteral(pattern);
    if (spec.fused || (spec.to_bytes && IsOneCharacter(from))) {
      spec.decoder.rules.push_back(
          {.kind = TextRule::Kind::kReplace, .from = std::move(from), .to = std::move(to)});
      return;
    }
    AddStep(
        field,
        [from = std::move(from), to = std::move(to)](std::string token, TokenPlace) {
          return ReplaceAll(std::move(token), from, to);
        },
        spec);
    return;
  }
  const Field regex = pattern.At("Regex");
  Pattern compiled = CompilePattern(regex);
  if (compiled.may_match_nothing()) {
    regex.Unsupported("matches the empty text: use a pattern that matches at least one character");
  }
  const auto step = ReplaceStep(std::move(compiled), std::move(to));
  AddStep(
      field,
      [step](std::string token, TokenPlace) {
        NormalizedText text;
        text.text = std::move(token);
        step(text);
        return std::move(text.text);
      },
      spec);
}

void ReadStrip(const Field& field, DecoderSpec& spec) {
  const Field content = field.At("content");
  TextRule rule{.kind = TextRule::Kind::kStrip,
                .from = std::string(content.String()),
                .start = field.At("start").Count(),
                .stop = field.At("stop").Count()};
  if (!IsOneCharacter(rule.from)) content.Broken("must be one character");
  if (spec.fused) {
    if (rule.from == " " && rule.start == 1 && rule.stop == 0 && spec.decoder.rules.empty() &&
        !spec.strips_leading_space) {
      spec.strips_leading_space = true;
    } else {
      spec.decoder.rules.push_back(std::move(rule));
    }
    return;
  }
  AddStep(
      field,
      [rule](std::string token, TokenPlace) {
        return TextRuleState(rule, /*at_start=*/true).Push(token);
      },
      spec);
}

void ReadMetaspace(const Field& field, DecoderSpec& spec) {
  const Field replacement = field.At("replacement");
  std::string from(replacement.String());
  if (!IsOneCharacter(from)) replacement.Broken("must be one character");
  const auto scheme = field.Find("prepend_scheme");
  const bool prepends =
      field.BoolOr("add_prefix_space", true) && !(scheme && scheme->String() == "never");
  if (spec.fused) {
    spec.decoder.rules.push_back(
        {.kind = TextRule::Kind::kReplace, .from = std::move(from), .to = prepends ? "" : " "});
    return;
  }
  AddStep(
      field,
      [from = std::move(from), prepends](std::string token, TokenPlace place) {
        return ReplaceAll(std::move(token), from, prepends && place.first ? "" : " ");
      },
      spec);
  if (!prepends) return;
  spec.decoder.first_differs = true;
  spec.strips_leading_space = true;
}

// Removes spaces before English punctuation and contractions, in the library's order.
std::string CleanUp(std::string text) {
  constexpr std::pair<std::string_view, std::string_view> kRules[] = {
      {" .", "."},   {" ?", "?"},     {" !", "!"},    {" ,", ","},
      {" ' ", "'"},  {" n't", "n't"}, {" 'm", "'m"},  {" do not", " don't"},
      {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
  for (const auto& [from, to] : kRules) text = ReplaceAll(std::move(text), from, to);
  return text;
}

void ReadWordPiece(const Field& field, DecoderSpec& spec) {
  const auto prefix_field = field.Find("prefix");
  std::string prefix(prefix_field ? prefix_field->String() : "##");
  const bool cleanup = field.BoolOr("cleanup", true);
  AddStep(
      field,
      [prefix = std::move(prefix), cleanup](std::string token, TokenPlace place) {
        if (!place.first) {
          if (token.starts_with(prefix)) {
            token.erase(0, prefix.size());
          } else {
            token.insert(0, " ");
          }
        }
        return cleanup ? CleanUp(std::move(token)) : token;
      },
      spec);
  spec.decoder.first_differs = true;
}

void ReadBpe(const Field& field, DecoderSpec& spec) {
  const auto suffix_field = field.Find("suffix");
  std::string suffix(suffix_field ? suffix_field->String() : "</w>");
  if (suffix.empty()) suffix_field->Broken("must not be empty");
  if (spec.fused) {
    spec.decoder.rules.push_back(
        {.kind = TextRule::Kind::kReplace, .from = std::move(suffix), .to = ""});
    return;
  }
  AddStep(
      field,
      [suffix = std::move(suffix)](std::string token, TokenPlace place) {
        return ReplaceAll(std::move(token), suffix, place.last ? "" : " ");
      },
      spec);
  spec.decoder.last_differs = true;
}

constexpr JsonComponent<DecoderSpec> kDecoders[] = {
    {"Sequence", ReadSequence},   {"ByteLevel", ReadByteLevel}, {"ByteFallback", ReadByteFallback},
    {"Fuse", ReadFuse},           {"Replace", ReadReplace},     {"Strip", ReadStrip},
    {"Metaspace", ReadMetaspace}, {"WordPiece", ReadWordPiece}, {"BPEDecoder", ReadBpe},
};

}  // namespace

void ReadDecoder(const Field& field, DecoderSpec& spec) { ReadComponent(kDecoders, field, spec); }

}  // namespace tandem::engine
