#include "engine/loop/kv_budget.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <limits>
#include <string>

#include "engine/base/check.h"
#include "engine/base/log.h"
#include "engine/kv/block_pool.h"

namespace tandem::engine {
namespace {

constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

// MemAvailable of /proc/meminfo, else all physical memory.
int64_t AvailableMemoryBytes() {
  std::ifstream meminfo("/proc/meminfo");
  std::string key, unit;
  int64_t kib = 0;
  while (meminfo >> key >> kib) {
    if (key == "MemAvailable:") return kib * 1024;
    std::getline(meminfo, unit);
  }
  return int64_t{sysconf(_SC_PHYS_PAGES)} * int64_t{sysconf(_SC_PAGESIZE)};
}

// What cgroup v2 leaves: limit minus use, page cache counted as free. "max" reads as no limit.
int64_t CgroupRoomBytes() {
  int64_t limit = 0;
  int64_t current = 0;
  if (!(std::ifstream("/sys/fs/cgroup/memory.max") >> limit)) return kNoLimit;
  if (!(std::ifstream("/sys/fs/cgroup/memory.current") >> current)) return limit;
  std::ifstream stat("/sys/fs/cgroup/memory.stat");
  std::string key;
  int64_t value = 0;
  while (stat >> key >> value) {
    if (key == "file") current -= value;
  }
  return std::max<int64_t>(0, limit - std::max<int64_t>(0, current));
}

std::string MiB(int64_t bytes) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.1f MiB", static_cast<double>(bytes) / (1 << 20));
  return text;
}

}  // namespace

int64_t DefaultMemoryBudgetBytes() {
  return std::min(AvailableMemoryBytes(), CgroupRoomBytes()) / 10 * 8;
}

int64_t PlanKvBlocks(const Model& model, const EngineOptions& options, int64_t max_model_len,
                     int64_t scratch_bytes) {
  const KvCache::Shape one = ModelRunner::KvShape(model, 1);
  const int64_t block_bytes = 2 * one.n_layers * one.n_kv_heads * one.head_block_bytes;
  TANDEM_CHECK(block_bytes > 0 && max_model_len > 0);
  const int64_t per_sequence = (max_model_len + kTokensPerBlock - 1) / kTokensPerBlock;

  int64_t bytes = options.kv_cache_bytes;
  std::string source = "the KV cache";
  if (bytes == 0) {
    const int64_t budget =
        options.memory_bytes > 0 ? options.memory_bytes : DefaultMemoryBudgetBytes();
    bytes = std::max<int64_t>(0, budget - model.weight_bytes() - scratch_bytes);
    source = "the memory budget of " + MiB(budget) + " minus " + MiB(model.weight_bytes()) +
             " of weights and " + MiB(scratch_bytes) + " of scratch";
  }
  int64_t n_blocks = std::min<int64_t>(bytes / block_bytes, std::numeric_limits<int32_t>::max());
  if (options.kv_cache_bytes == 0) {
    n_blocks = std::min(n_blocks, CheckedMul(options.max_seqs, per_sequence, "--max-seqs"));
  }
  if (n_blocks < per_sequence) {
    throw Error(ErrorCode::kFailedPrecondition,
                source + " leaves " + MiB(bytes) + " for keys and values, but one sequence of " +
                    std::to_string(max_model_len) + " tokens needs " +
                    MiB(per_sequence * block_bytes) + ": raise --memory or lower --max-model-len");
  }
  spdlog::info("kv cache blocks={} tokens={} bytes={} max_model_len={}", n_blocks,
               n_blocks * kTokensPerBlock, n_blocks * block_bytes, max_model_len);
  return n_blocks;
}

}  // namespace tandem::engine
