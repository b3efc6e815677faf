#pragma once

#include <cstddef>
#include <cstdint>

// The C interface of llguidance/src/lib.rs, or of absent/ in a build without Rust. No call throws
// or panics: a failure returns null or -1 and writes a message. A matcher serves one thread at a
// time; a vocabulary serves any number.
extern "C" {

struct TandemVocabulary;
struct TandemMatcher;

struct TandemLimits {
  uint64_t max_grammar_size;    // symbols
  uint64_t initial_lexer_fuel;  // about 50,000 a millisecond
  uint64_t step_lexer_fuel;     // about 14,000 a millisecond
  uint64_t step_max_items;      // about 20,000 a millisecond
  uint64_t max_lexer_states;    // 1 to 2 kB each
};

struct TandemMessage {
  char* text;
  size_t size;
};

// `bytes` holds the tokens' bytes one after the other. A token without bytes is never allowed,
// unless it is an end token.
TandemVocabulary* tandem_vocabulary_new(uint32_t n_tokens, const uint32_t* lengths,
                                        const uint8_t* bytes, const uint32_t* end_tokens,
                                        uint32_t n_end_tokens, TandemMessage message);
void tandem_vocabulary_free(TandemVocabulary* vocabulary);

// `kind` is "json_schema", "regex" or "lark".
TandemMatcher* tandem_grammar_compile(const TandemVocabulary* vocabulary, const uint8_t* kind,
                                      size_t kind_size, const uint8_t* data, size_t data_size,
                                      TandemLimits limits, TandemMessage message);
TandemMatcher* tandem_matcher_clone(const TandemMatcher* matcher, TandemMessage message);
void tandem_matcher_free(TandemMatcher* matcher);

// 1: `words` has a bit per token. 0: the text is complete and nothing can follow.
int32_t tandem_matcher_mask(TandemMatcher* matcher, uint32_t* words, size_t n_words,
                            TandemMessage message);
// 1: the text is now complete and nothing can follow. 0: it goes on.
int32_t tandem_matcher_commit(TandemMatcher* matcher, uint32_t token, TandemMessage message);
int32_t tandem_matcher_is_complete(TandemMatcher* matcher, TandemMessage message);
int32_t tandem_matcher_rollback(TandemMatcher* matcher, size_t n_tokens, TandemMessage message);
// The number of bytes written.
int64_t tandem_matcher_forced(TandemMatcher* matcher, uint8_t* bytes, size_t size,
                              TandemMessage message);
int32_t tandem_llguidance_panic(TandemMessage message);
const char* tandem_llguidance_version();  // null: built without
}
