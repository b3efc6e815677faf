#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/base/ids.h"
#include "server/models/model_registry.h"

namespace tandem::server {

// The number of tokens that one reply may list: 1,048,576, or twice the model's context if that is
// more. A listed token takes some hundred bytes, and its text in the request only one.
int64_t MostListedTokens(const ServedModel& model);

// Throws kInvalidArgument naming `param` ("prompt" or "messages") if `n_tokens` is larger.
void CheckListedTokens(const ServedModel& model, size_t n_tokens, const std::string& param);

// Appends `[{"id":1,"text":"a","bytes":[97],"special":false,"loss":true},…]`. REQUIRES: the model
// has a tokenizer; `loss` has one entry per id.
void AppendTokenList(std::string& out, const ServedModel& model, std::span<const TokenId> ids,
                     const std::vector<bool>& loss);

}  // namespace tandem::server
