#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/base/ids.h"
#include "engine/base/thread_group.h"
#include "engine/constrain/grammar_source.h"

struct TandemMatcher;
struct TandemVocabulary;

namespace tandem::engine {

class Tokenizer;

// How many 32-bit words a mask of the vocabulary has.
inline size_t MaskWords(int64_t vocab_size) { return (static_cast<size_t>(vocab_size) + 31) / 32; }
inline bool IsAllowed(std::span<const uint32_t> mask, TokenId token) {
  const auto id = static_cast<size_t>(token);
  return (mask[id / 32] >> (id % 32) & 1) != 0;
}

// The state of one text within its grammar. Owned by one thread at a time. A call that fails throws
// kInvalidArgument with the reason; every later call then throws the same.
class GrammarMatcher {
 public:
  explicit GrammarMatcher(TandemMatcher* owned) : matcher_(owned) {}

  // Sets the bit of every token that may follow: those whose bytes keep the text a prefix of the
  // language, and the end tokens if the text is complete. Returns false, with `mask` undefined, if
  // the text is complete and nothing can follow.
  bool Mask(std::span<uint32_t> mask);
  // Takes the next token. Returns true if the text is now complete and nothing can follow.
  bool Commit(TokenId token);
  void Rollback(int64_t n_tokens);
  bool IsComplete();
  // Bytes with which every continuation begins, at most `max_bytes`.
  std::string Forced(size_t max_bytes);

 private:
  struct Free {
    void operator()(TandemMatcher* matcher) const;
  };
  std::unique_ptr<TandemMatcher, Free> matcher_;
};

// A compiled grammar over one vocabulary. Immutable; any thread may make matchers.
class Grammar {
 public:
  explicit Grammar(TandemMatcher* owned) : pristine_(owned) {}
  ~Grammar();
  Grammar(const Grammar&) = delete;
  Grammar& operator=(const Grammar&) = delete;

  // A matcher of the empty text. It shares nothing with other matchers, so its masks do not depend
  // on them.
  GrammarMatcher NewMatcher() const;

 private:
  mutable std::mutex mutex_;  // guards *pristine_
  TandemMatcher* const pristine_;
};

// Compiles grammars for one model's vocabulary and keeps the latest ones. Thread-safe. One grammar
// compiles at a time, so hostile grammars cannot take more than one thread.
class GrammarCompiler {
 public:
  // `tokenizer` may be null: then Compile refuses every grammar.
  GrammarCompiler(std::shared_ptr<const Tokenizer> tokenizer, std::vector<TokenId> end_tokens,
                  int64_t vocab_size);

  // Starts a thread that reads the vocabulary: about 0.1 s for 150,000 tokens. The destructor joins
  // it. If it fails, or was never called, the first Compile reads the vocabulary. Never throws for
  // lack of a thread or of memory. Call it once.
  void ReadAhead();
  // Throws kInvalidArgument for a grammar that is malformed, too large or allows no text. Throws
  // kUnsupported in a build without llguidance, and for a model whose tokens have no fixed bytes.
  // Waits for ReadAhead's thread.
  std::shared_ptr<const Grammar> Compile(const GrammarSource& source) const;

 private:
  struct Entry {
    std::string key;
    std::shared_ptr<const Grammar> grammar;
  };

  std::shared_ptr<const Grammar> Find(const std::string& key) const;
  void Keep(const std::string& key, const std::shared_ptr<const Grammar>& grammar) const;
  bool CanConstrain() const;
  void ReadVocabulary() const;
  struct FreeVocabulary {
    void operator()(TandemVocabulary* vocabulary) const;
  };

  const std::shared_ptr<const Tokenizer> tokenizer_;
  const std::vector<TokenId> end_tokens_;
  const int64_t vocab_size_;
  mutable std::mutex cache_mutex_;    // guards cache_
  mutable std::list<Entry> cache_;    // most recently used first
  mutable std::mutex compile_mutex_;  // guards vocabulary_
  mutable std::unique_ptr<TandemVocabulary, FreeVocabulary> vocabulary_;
  ThreadGroup reader_;  // last: its thread uses the other members
};

// The version of llguidance; empty in a build without it.
std::string_view LlguidanceVersion();
// Throws kUnsupported in a build without llguidance.
void RequireLlguidance();

}  // namespace tandem::engine
