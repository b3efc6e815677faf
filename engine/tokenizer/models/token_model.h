#pragma once

#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/base/ids.h"
#include "engine/tokenizer/models/token_table.h"

namespace tandem::engine {

// How one piece of text becomes tokens: the `model` of a tokenizer.json. Immutable; any thread may
// encode, each with its own scratch.
class TokenModel {
 public:
  // Buffers that are reused from piece to piece.
  class Scratch {
   public:
    virtual ~Scratch() = default;
  };

  virtual ~TokenModel() = default;
  virtual std::unique_ptr<Scratch> MakeScratch() const = 0;
  // Appends the tokens of a piece; its bytes need not be valid UTF-8. At most O(n log n).
  // REQUIRES: `scratch` is of this model; the piece has fewer than 2^32 - 1 bytes. Throws
  // kInvalidArgument for a text with an unknown part when the vocabulary has no token for those.
  virtual void Encode(std::string_view piece, Scratch& scratch,
                      std::vector<TokenId>& out) const = 0;

  // The tokens that text can become, as they are looked up.
  const TokenTable& tokens() const { return tokens_; }
  // Whether pieces may be cut before every run of metaspaces without changing their tokens.
  virtual bool may_cut_at_metaspace() const { return false; }

 protected:
  explicit TokenModel(TokenTable tokens) : tokens_(std::move(tokens)) {}

  TokenTable tokens_;
};

}  // namespace tandem::engine
