#include "engine/constrain/grammar.h"

#include <algorithm>
#include <array>
#include <limits>

#include "engine/base/attempt.h"
#include "engine/base/check.h"
#include "engine/base/error.h"
#include "engine/constrain/binding.h"
#include "engine/io/sha256.h"
#include "engine/tokenizer/tokenizer.h"

namespace tandem::engine {
namespace {

// Larger than any schema of a public API, and compiled within a second.
constexpr size_t kMaxSourceBytes = size_t{1} << 20;
constexpr size_t kMaxCached = 64;
// The trie of llguidance holds paths of at most 1,024 bytes and 2^22 nodes.
constexpr size_t kMaxTokenBytes = 512;
constexpr int64_t kMaxVocabulary = int64_t{1} << 21;

constexpr TandemLimits kLimits = {.max_grammar_size = 200'000,
                                  .initial_lexer_fuel = 1'000'000,
                                  .step_lexer_fuel = 200'000,
                                  .step_max_items = 50'000,
                                  .max_lexer_states = 50'000};

// A buffer for the messages of the binding.
class Message {
 public:
  TandemMessage out() { return {text_.data(), text_.size()}; }
  std::string text() const { return text_.data(); }
  [[noreturn]] void Throw(const std::string& what) const {
    throw Error(ErrorCode::kInvalidArgument, what + text());
  }

 private:
  std::array<char, 1024> text_{};
};

std::string_view NameOf(GrammarSource::Kind kind) {
  switch (kind) {
    case GrammarSource::Kind::kJsonSchema:
      return "json_schema";
    case GrammarSource::Kind::kRegex:
      return "regex";
    case GrammarSource::Kind::kLark:
      break;
  }
  return "lark";
}

const uint8_t* BytesOf(std::string_view text) {
  return reinterpret_cast<const uint8_t*>(text.data());
}

// Whether the text of a token depends on no other token, once the answer continues a text.
bool HasFixedBytes(const Tokenizer& tokenizer) {
  const Decoder* decoder = tokenizer.decoder();
  if (decoder == nullptr) return true;
  if (decoder->first_differs || decoder->last_differs) return false;
  return std::all_of(decoder->rules.begin(), decoder->rules.end(), [](const TextRule& rule) {
    return rule.kind == TextRule::Kind::kStrip && rule.stop == 0;
  });
}

struct VocabularyBytes {
  std::vector<uint32_t> lengths;
  std::string bytes;
};

// End tokens have no bytes, so only a complete text can lead to one. Other control tokens have the
// mark of llguidance, so text never becomes one.
VocabularyBytes ReadBytes(const Tokenizer& tokenizer, const std::vector<TokenId>& end_tokens,
                          int64_t vocab_size) {
  constexpr char kControlMark = '\xff';
  VocabularyBytes out;
  out.lengths.resize(static_cast<size_t>(vocab_size));
  for (int64_t i = 0; i < vocab_size; ++i) {
    const auto id = static_cast<TokenId>(i);
    if (std::find(end_tokens.begin(), end_tokens.end(), id) != end_tokens.end()) continue;
    const std::string_view bytes = tokenizer.TokenBytes(id);
    if (bytes.empty() || bytes.size() > kMaxTokenBytes) continue;
    const size_t before = out.bytes.size();
    if (tokenizer.IsSpecial(id)) out.bytes += kControlMark;
    out.bytes += bytes;
    out.lengths[static_cast<size_t>(i)] = static_cast<uint32_t>(out.bytes.size() - before);
  }
  return out;
}

}  // namespace

void GrammarMatcher::Free::operator()(TandemMatcher* matcher) const {
  tandem_matcher_free(matcher);
}

bool GrammarMatcher::Mask(std::span<uint32_t> mask) {
  Message message;
  const int32_t result =
      tandem_matcher_mask(matcher_.get(), mask.data(), mask.size(), message.out());
  if (result < 0) message.Throw("the grammar cannot go on: ");
  return result == 1;
}

bool GrammarMatcher::Commit(TokenId token) {
  Message message;
  const int32_t result =
      tandem_matcher_commit(matcher_.get(), static_cast<uint32_t>(token), message.out());
  if (result < 0) message.Throw("the grammar cannot go on: ");
  return result == 1;
}

void GrammarMatcher::Rollback(int64_t n_tokens) {
  TANDEM_CHECK(n_tokens >= 0);
  Message message;
  if (tandem_matcher_rollback(matcher_.get(), static_cast<size_t>(n_tokens), message.out()) < 0) {
    message.Throw("the grammar cannot go back: ");
  }
}

bool GrammarMatcher::IsComplete() {
  Message message;
  const int32_t result = tandem_matcher_is_complete(matcher_.get(), message.out());
  if (result < 0) message.Throw("the grammar cannot go on: ");
  return result == 1;
}

std::string GrammarMatcher::Forced(size_t max_bytes) {
  std::string out(max_bytes, '\0');
  Message message;
  const int64_t n = tandem_matcher_forced(matcher_.get(), reinterpret_cast<uint8_t*>(out.data()),
                                          out.size(), message.out());
  if (n < 0) message.Throw("the grammar cannot go on: ");
  out.resize(static_cast<size_t>(n));
  return out;
}

Grammar::~Grammar() { tandem_matcher_free(pristine_); }

GrammarMatcher Grammar::NewMatcher() const {
  Message message;
  TandemMatcher* copy = nullptr;
  {
    const std::lock_guard lock(mutex_);
    copy = tandem_matcher_clone(pristine_, message.out());
  }
  if (copy == nullptr) message.Throw("the grammar cannot begin: ");
  return GrammarMatcher(copy);
}

GrammarCompiler::GrammarCompiler(std::shared_ptr<const Tokenizer> tokenizer,
                                 std::vector<TokenId> end_tokens, int64_t vocab_size)
    : tokenizer_(std::move(tokenizer)),
      end_tokens_(std::move(end_tokens)),
      vocab_size_(vocab_size) {}

void GrammarCompiler::FreeVocabulary::operator()(TandemVocabulary* vocabulary) const {
  tandem_vocabulary_free(vocabulary);
}

bool GrammarCompiler::CanConstrain() const {
  return tokenizer_ != nullptr && HasFixedBytes(*tokenizer_) && vocab_size_ <= kMaxVocabulary;
}

void GrammarCompiler::ReadAhead() {
  if (LlguidanceVersion().empty() || !CanConstrain()) return;
  // Compile tries again, and reports the fault to the request that needs the vocabulary.
  Attempt([this] {
    reader_.Add([this] {
      const std::lock_guard lock(compile_mutex_);
      ReadVocabulary();
    });
  });
}

std::shared_ptr<const Grammar> GrammarCompiler::Compile(const GrammarSource& source) const {
  RequireLlguidance();
  if (!CanConstrain()) {
    throw Error(ErrorCode::kUnsupported,
                tokenizer_ == nullptr
                    ? "this model has no tokenizer, so its answers cannot be constrained"
                    : "the tokens of this model have no fixed text, so its answers cannot be "
                      "constrained; leave the field out and check the answer");
  }
  if (source.text.size() > kMaxSourceBytes) {
    throw Error(ErrorCode::kInvalidArgument, "the grammar must have at most " +
                                                 std::to_string(kMaxSourceBytes) + " bytes, got " +
                                                 std::to_string(source.text.size()));
  }
  const std::string key = std::string(NameOf(source.kind)) + " " +
                          ToHex(Sha256Of(std::as_bytes(std::span<const char>(source.text))));
  if (auto found = Find(key)) return found;
  const std::lock_guard lock(compile_mutex_);
  if (auto found = Find(key)) return found;
  ReadVocabulary();
  const std::string_view kind = NameOf(source.kind);
  Message message;
  TandemMatcher* matcher =
      tandem_grammar_compile(vocabulary_.get(), BytesOf(kind), kind.size(), BytesOf(source.text),
                             source.text.size(), kLimits, message.out());
  if (matcher == nullptr) message.Throw("");
  auto grammar = std::make_shared<const Grammar>(matcher);
  Keep(key, grammar);
  return grammar;
}

std::shared_ptr<const Grammar> GrammarCompiler::Find(const std::string& key) const {
  const std::lock_guard lock(cache_mutex_);
  const auto found = std::find_if(cache_.begin(), cache_.end(),
                                  [&](const Entry& entry) { return entry.key == key; });
  if (found == cache_.end()) return nullptr;
  cache_.splice(cache_.begin(), cache_, found);
  return cache_.front().grammar;
}

void GrammarCompiler::Keep(const std::string& key,
                           const std::shared_ptr<const Grammar>& grammar) const {
  std::list<Entry> dropped;  // destroyed after the lock
  const std::lock_guard lock(cache_mutex_);
  cache_.push_front({key, grammar});
  if (cache_.size() > kMaxCached) dropped.splice(dropped.begin(), cache_, --cache_.end());
}

// REQUIRES: compile_mutex_ held.
void GrammarCompiler::ReadVocabulary() const {
  if (vocabulary_ != nullptr) return;
  const VocabularyBytes tokens = ReadBytes(*tokenizer_, end_tokens_, vocab_size_);
  std::vector<uint32_t> ends;
  for (const TokenId id : end_tokens_) {
    if (id >= 0 && id < vocab_size_) ends.push_back(static_cast<uint32_t>(id));
  }
  Message message;
  vocabulary_.reset(tandem_vocabulary_new(static_cast<uint32_t>(vocab_size_), tokens.lengths.data(),
                                          BytesOf(tokens.bytes), ends.data(),
                                          static_cast<uint32_t>(ends.size()), message.out()));
  if (vocabulary_ == nullptr) {
    throw Error(ErrorCode::kUnsupported,
                "the vocabulary of this model cannot be constrained: " + message.text());
  }
}

std::string_view LlguidanceVersion() {
  const char* version = tandem_llguidance_version();
  return version == nullptr ? std::string_view() : std::string_view(version);
}

void RequireLlguidance() {
  if (!LlguidanceVersion().empty()) return;
  throw Error(ErrorCode::kUnsupported,
              "this server was built without llguidance, so it cannot constrain the answer: leave "
              "the field out and check the answer, or build the server with Rust 1.87 or newer");
}

}  // namespace tandem::engine
