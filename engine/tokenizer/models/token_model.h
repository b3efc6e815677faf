#pragma once

#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/base/ids.h"
#include "engine/tokenizer/models/token_table.h"

namespace tandem::engine {

// Turns one piece of text into tokens: the `model` of a tokenizer.json. Immutable; any thread may
// encode with its own scratch.
class TokenModel {
 public:
  // Buffers reused between pieces.
  class Scratch {
   public:
    virtual ~Scratch() = default;
  };

  virtual ~TokenModel() = default;
  virtual std::unique_ptr<Scratch> MakeScratch() const = 0;
  // Appends the tokens of a piece, whose bytes need not be valid UTF-8. At most O(n log n).
  // REQUIRES: `scratch` belongs to this model; the piece has fewer than 2^32 - 1 bytes. A model
  // without a token for unknown text throws kInvalidArgument; BPE drops such text.
  virtual void Encode(std::string_view piece, Scratch& scratch,
                      std::vector<TokenId>& out) const = 0;

  // The tokens that text can become, in the form of their look-up.
  const TokenTable& tokens() const { return tokens_; }
  // Whether cutting pieces before every run of metaspaces keeps their tokens.
  virtual bool may_cut_at_metaspace() const { return false; }

 protected:
  explicit TokenModel(TokenTable tokens) : tokens_(std::move(tokens)) {}

  TokenTable tokens_;
};

}  // namespace tandem::engine
