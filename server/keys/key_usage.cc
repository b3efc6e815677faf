#include "server/keys/key_usage.h"

#include "engine/base/unix_time.h"

namespace tandem::server {

void KeyUsage::CountRequest(uint64_t client) {
  const int64_t now = UnixNow();
  const std::lock_guard lock(mutex_);
  UsageCounts& counts = counts_[client];
  ++counts.requests;
  counts.last_used_at = now;
}

void KeyUsage::CountTokens(uint64_t client, int64_t n_prompt, int64_t n_generated) {
  const std::lock_guard lock(mutex_);
  UsageCounts& counts = counts_[client];
  counts.prompt_tokens += n_prompt;
  counts.generation_tokens += n_generated;
}

UsageCounts KeyUsage::Of(uint64_t client) const {
  const std::lock_guard lock(mutex_);
  const auto found = counts_.find(client);
  return found == counts_.end() ? UsageCounts() : found->second;
}

std::unordered_map<uint64_t, UsageCounts> KeyUsage::All() const {
  const std::lock_guard lock(mutex_);
  return counts_;
}

}  // namespace tandem::server
