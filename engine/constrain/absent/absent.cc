#include <algorithm>
#include <cstring>
#include <string_view>

#include "engine/constrain/binding.h"

// Replaces llguidance in a build without Rust. Every call fails with a message.

namespace {

void SayAbsent(TandemMessage message) {
  constexpr std::string_view kText =
      "this program was built without llguidance (Rust): it cannot constrain answers";
  if (message.text == nullptr || message.size == 0) return;
  const size_t n = std::min(kText.size(), message.size - 1);
  std::memcpy(message.text, kText.data(), n);
  message.text[n] = '\0';
}

}  // namespace

extern "C" {

TandemVocabulary* tandem_vocabulary_new(uint32_t, const uint32_t*, const uint8_t*, const uint32_t*,
                                        uint32_t, TandemMessage message) {
  SayAbsent(message);
  return nullptr;
}
void tandem_vocabulary_free(TandemVocabulary*) {}
TandemMatcher* tandem_grammar_compile(const TandemVocabulary*, const uint8_t*, size_t,
                                      const uint8_t*, size_t, TandemLimits, TandemMessage message) {
  SayAbsent(message);
  return nullptr;
}
TandemMatcher* tandem_matcher_clone(const TandemMatcher*, TandemMessage message) {
  SayAbsent(message);
  return nullptr;
}
void tandem_matcher_free(TandemMatcher*) {}
int32_t tandem_matcher_mask(TandemMatcher*, uint32_t*, size_t, TandemMessage message) {
  SayAbsent(message);
  return -1;
}
int32_t tandem_matcher_commit(TandemMatcher*, uint32_t, TandemMessage message) {
  SayAbsent(message);
  return -1;
}
int32_t tandem_matcher_is_complete(TandemMatcher*, TandemMessage message) {
  SayAbsent(message);
  return -1;
}
int32_t tandem_matcher_rollback(TandemMatcher*, size_t, TandemMessage message) {
  SayAbsent(message);
  return -1;
}
int64_t tandem_matcher_forced(TandemMatcher*, uint8_t*, size_t, TandemMessage message) {
  SayAbsent(message);
  return -1;
}
int32_t tandem_llguidance_panic(TandemMessage message) {
  SayAbsent(message);
  return -1;
}
const char* tandem_llguidance_version() { return nullptr; }
}
