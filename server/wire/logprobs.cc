#include "server/wire/logprobs.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "engine/tokenizer/tokenizer.h"
#include "server/wire/utf8.h"

namespace tandem::server {
namespace {

using Json = nlohmann::ordered_json;

Json RawBytes(TokenId id, const TokenNames& names) {
  if (names.tokenizer == nullptr || names.tokenizer->IsSpecial(id)) return nullptr;
  Json out = Json::array();
  for (const char c : names.tokenizer->TokenBytes(id)) out.push_back(static_cast<unsigned char>(c));
  return out;
}

Json NamedLogprob(TokenId id, float logprob, const TokenNames& names) {
  Json out;
  out["token"] = names.Name(id);
  out["logprob"] = JsonLogprob(logprob);
  out["bytes"] = RawBytes(id, names);
  return out;
}

Json EmptyArrays() {
  Json out;
  for (const char* name : {"tokens", "token_logprobs", "top_logprobs", "text_offset"}) {
    out[name] = Json::array();
  }
  return out;
}

size_t NumTop(const engine::TokenLogprob& token, int wanted) {
  return std::min(token.top.size(), static_cast<size_t>(std::max(0, wanted)));
}

}  // namespace

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

Json ChatLogprob(const engine::TokenLogprob& token, int top_logprobs, const TokenNames& names) {
  Json out = NamedLogprob(token.token, token.logprob, names);
  Json top = Json::array();
  for (size_t i = 0; i < NumTop(token, top_logprobs); ++i) {
    top.push_back(NamedLogprob(token.top[i].first, token.top[i].second, names));
  }
  out["top_logprobs"] = std::move(top);
  return out;
}

Json PromptLogprobs(std::span<const engine::TokenLogprob> tokens, int prompt_logprobs,
                    const TokenNames& names) {
  Json out = Json::array();
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (i == 0) {
      out.push_back(nullptr);
      continue;
    }
    const engine::TokenLogprob& token = tokens[i];
    Json entry;
    const auto add = [&](TokenId id, float logprob, int64_t rank) {
      Json& value = entry[std::to_string(id)];
      value["logprob"] = JsonLogprob(logprob);
      value["rank"] = rank;
      value["decoded_token"] = names.Name(id);
    };
    add(token.token, token.logprob, token.rank);
    for (size_t k = 0; k < NumTop(token, prompt_logprobs); ++k) {
      if (token.top[k].first == token.token) continue;
      add(token.top[k].first, token.top[k].second, static_cast<int64_t>(k) + 1);
    }
    out.push_back(std::move(entry));
  }
  return out;
}

CompletionLogprobs::CompletionLogprobs(TokenNames names, int top_logprobs, bool skip_special)
    : names_(std::move(names)),
      top_logprobs_(top_logprobs),
      skip_special_(skip_special),
      arrays_(std::make_shared<Json>(EmptyArrays())) {}

void CompletionLogprobs::Add(const engine::TokenLogprob& token, bool has_logprob) {
  Json& arrays = *arrays_;
  arrays["tokens"].push_back(names_.Name(token.token));
  arrays["text_offset"].push_back(offset_);
  if (has_logprob) {
    arrays["token_logprobs"].push_back(JsonLogprob(token.logprob));
    Json top = Json::object();
    for (size_t i = 0; i < NumTop(token, top_logprobs_); ++i) {
      top[names_.Name(token.top[i].first)] = JsonLogprob(token.top[i].second);
    }
    top[names_.Name(token.token)] = JsonLogprob(token.logprob);
    arrays["top_logprobs"].push_back(std::move(top));
  } else {
    arrays["token_logprobs"].push_back(nullptr);
    arrays["top_logprobs"].push_back(nullptr);
  }

  const engine::Tokenizer* tokenizer = names_.tokenizer.get();
  if (tokenizer == nullptr || (skip_special_ && tokenizer->IsSpecial(token.token))) return;
  std::string_view bytes = tokenizer->TokenBytes(token.token);
  if (at_start_ && tokenizer->adds_leading_space() && bytes.starts_with(' ')) {
    bytes.remove_prefix(1);
  }
  at_start_ = false;
  offset_ += CountCharacters(bytes);
}

bool CompletionLogprobs::empty() const { return (*arrays_)["tokens"].empty(); }

Json CompletionLogprobs::Take() {
  Json out = EmptyArrays();
  out.swap(*arrays_);
  return out;
}

}  // namespace tandem::server
