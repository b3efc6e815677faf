#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/ids.h"
#include "engine/tokenizer/text/text_ranges.h"

namespace tandem::engine {

// A token found in the text before any other rule applies. Fields are those of tokenizer.json.
struct AddedToken {
  std::string content;
  TokenId id = -1;
  bool special = false;      // can be omitted from decoded text
  bool single_word = false;  // matches only without word characters next to it
  bool lstrip = false;       // includes the white space before it
  bool rstrip = false;       // includes the white space after it
  bool normalized = false;   // searched in the normalised text

  // Whether the token steers the model, so that client text must not produce it. Control tokens are
  // special tokens, and tokens of several characters in brackets or behind a slash (<tool_call>,
  // [INST], /think). White space, words, placeholders and tags of HTML are vocabulary.
  bool is_control() const;
};

// Finds added tokens in a text: leftmost first, the longest where several begin. A control token
// never matches bytes that a client wrote. Uses a trie; its longest spelling is bounded at load, so
// a search is linear.
class AddedTokenMatcher {
 public:
  // Copies the tokens. REQUIRES: no content is empty.
  explicit AddedTokenMatcher(const std::vector<AddedToken>& tokens);

  struct Hit {
    size_t begin;
    size_t end;
    TokenId id;
  };
  bool has_control() const { return has_control_; }

  // Splits a text into ordinary text, on_text(std::string_view), and tokens, on_token(id).
  // `client`: the ranges of `text` that clients wrote.
  template <class OnText, class OnToken>
  void Split(std::string_view text, std::span<const TextRange> client, OnText&& on_text,
             OnToken&& on_token) const {
    size_t done = 0, from = 0;
    RangeCursor cursor(client);
    while (const std::optional<Hit> hit = Next(text, done, from, cursor)) {
      if (hit->begin > done) on_text(text.substr(done, hit->begin - done));
      on_token(hit->id);
      done = from = hit->end;
    }
    if (done < text.size()) on_text(text.substr(done));
  }

 private:
  struct Node {
    int32_t token = -1;  // index into tokens_
    int32_t first_child = -1;
    int32_t next_sibling = -1;
    char byte = 0;
  };

  std::optional<Hit> Next(std::string_view text, size_t done, size_t from,
                          RangeCursor& client) const;
  int32_t Child(int32_t node, char byte) const;

  std::vector<AddedToken> tokens_;
  std::vector<bool> is_control_;  // by index into tokens_
  bool has_control_ = false;
  std::vector<Node> nodes_;
  std::array<int32_t, 256> roots_;  // node of each first byte, or -1
};

}  // namespace tandem::engine
