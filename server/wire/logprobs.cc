#include "server/wire/logprobs.h"

#include <algorithm>
#include <cmath>

#include "engine/base/utf8.h"
#include "engine/tokenizer/tokenizer.h"
#include "server/wire/json_text.h"

namespace tandem::server {
namespace {

void AppendRawBytes(std::string& out, TokenId id, const TokenNames& names) {
  if (names.tokenizer == nullptr || !names.AddsText(id)) {
    out += "null";
    return;
  }
  AppendJsonBytes(out, names.tokenizer->TokenBytes(id));
}

// Omits the closing brace.
void AppendNamedLogprob(std::string& out, TokenId id, float logprob, const TokenNames& names) {
  out += R"({"token":)";
  AppendJsonString(out, names.Name(id));
  out += R"(,"logprob":)";
  AppendJsonNumber(out, JsonLogprob(logprob));
  out += R"(,"bytes":)";
  AppendRawBytes(out, id, names);
}

size_t NumTop(const engine::TokenLogprob& token, int wanted) {
  return std::min(token.top.size(), static_cast<size_t>(std::max(0, wanted)));
}

void AppendComma(std::string& list) {
  if (!list.empty()) list.push_back(',');
}

}  // namespace

bool TokenNames::AddsText(TokenId id) const {
  if (!skip_special || !tokenizer->IsSpecial(id)) return true;
  return std::find(shown_special.begin(), shown_special.end(), id) != shown_special.end();
}

std::string TokenNames::Name(TokenId id) const {
  if (as_ids || tokenizer == nullptr) {
    std::string name = "token_id:";
    name += std::to_string(id);
    return name;
  }
  const std::string_view bytes = tokenizer->TokenBytes(id);
  if (IsValidUtf8(bytes)) return std::string(bytes);
  static constexpr char kHex[] = "0123456789abcdef";
  std::string name = "bytes:";
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    name += "\\x";
    name += kHex[byte >> 4];
    name += kHex[byte & 15];
  }
  return name;
}

double JsonLogprob(float logprob) {
  return std::isfinite(logprob) ? static_cast<double>(logprob) : -9999.0;
}

void AppendChatLogprob(std::string& out, const engine::TokenLogprob& token, int top_logprobs,
                       const TokenNames& names) {
  AppendNamedLogprob(out, token.token, token.logprob, names);
  out += R"(,"top_logprobs":[)";
  for (size_t i = 0; i < NumTop(token, top_logprobs); ++i) {
    if (i > 0) out.push_back(',');
    AppendNamedLogprob(out, token.top[i].first, token.top[i].second, names);
    out.push_back('}');
  }
  out += "]}";
}

void AppendPromptLogprobs(std::string& out, std::span<const engine::TokenLogprob> tokens,
                          int prompt_logprobs, const TokenNames& names) {
  const auto add = [&](TokenId id, float logprob, int64_t rank) {
    out.push_back('"');
    AppendJsonInt(out, id);
    out += R"(":{"logprob":)";
    AppendJsonNumber(out, JsonLogprob(logprob));
    out += R"(,"rank":)";
    AppendJsonInt(out, rank);
    out += R"(,"decoded_token":)";
    AppendJsonString(out, names.Name(id));
    out.push_back('}');
  };
  out.push_back('[');
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (i == 0) {
      out += "null";
      continue;
    }
    const engine::TokenLogprob& token = tokens[i];
    out += ",{";
    add(token.token, token.logprob, token.rank);
    for (size_t k = 0; k < NumTop(token, prompt_logprobs); ++k) {
      if (token.top[k].first == token.token) continue;
      out.push_back(',');
      add(token.top[k].first, token.top[k].second, static_cast<int64_t>(k) + 1);
    }
    out.push_back('}');
  }
  out.push_back(']');
}

CompletionLogprobs::CompletionLogprobs(TokenNames names, int top_logprobs)
    : names_(std::move(names)), top_logprobs_(top_logprobs) {}

void CompletionLogprobs::Add(const engine::TokenLogprob& token, bool has_logprob) {
  const std::string name = names_.Name(token.token);
  for (std::string* list : {&tokens_, &offsets_, &logprobs_, &tops_}) AppendComma(*list);
  AppendJsonString(tokens_, name);
  AppendJsonInt(offsets_, offset_.Push(TextOf(token.token)));
  if (has_logprob) {
    AppendJsonNumber(logprobs_, JsonLogprob(token.logprob));
    AppendTop(token, name);
  } else {
    logprobs_ += "null";
    tops_ += "null";
  }
}

// The token's text as the detokenizer produces it.
std::string_view CompletionLogprobs::TextOf(TokenId token) {
  const engine::Tokenizer* tokenizer = names_.tokenizer.get();
  if (tokenizer == nullptr || !names_.AddsText(token)) return {};
  std::string_view bytes = tokenizer->TokenBytes(token);
  if (bytes.empty()) return {};
  if (at_start_ && tokenizer->adds_leading_space() && bytes.starts_with(' ')) {
    bytes.remove_prefix(1);
  }
  at_start_ = false;
  return bytes;
}

void CompletionLogprobs::EndPrompt(bool continues_text) {
  offset_.Flush();
  at_start_ = !continues_text;
}

// Two tokens can have the same name, and keys must be unique: the chosen token goes first, then the
// more likely one.
void CompletionLogprobs::AppendTop(const engine::TokenLogprob& token, const std::string& name) {
  std::vector<std::string> keys;
  const auto add = [&](std::string key, float logprob) {
    if (std::find(keys.begin(), keys.end(), key) != keys.end()) return;
    tops_.push_back(keys.empty() ? '{' : ',');
    AppendJsonString(tops_, key);
    tops_.push_back(':');
    AppendJsonNumber(tops_, JsonLogprob(logprob));
    keys.push_back(std::move(key));
  };
  for (size_t i = 0; i < NumTop(token, top_logprobs_); ++i) {
    std::string other = names_.Name(token.top[i].first);
    if (other != name || token.top[i].first == token.token) {
      add(std::move(other), token.top[i].second);
    }
  }
  add(name, token.logprob);
  tops_.push_back('}');
}

void CompletionLogprobs::TakeInto(std::string& out) {
  out += R"({"tokens":[)";
  out += tokens_;
  out += R"(],"token_logprobs":[)";
  out += logprobs_;
  out += R"(],"top_logprobs":[)";
  out += tops_;
  out += R"(],"text_offset":[)";
  out += offsets_;
  out += "]}";
  for (std::string* list : {&tokens_, &offsets_, &logprobs_, &tops_}) list->clear();
}

}  // namespace tandem::server
