// The part of EngineLoop that keeps prefixes beyond their requests: in memory, on disk, and not at
// all after a long idle time.

#include <malloc.h>
#include <sys/stat.h>

#include <algorithm>
#include <optional>
#include <string>

#include "engine/base/attempt.h"
#include "engine/base/log.h"
#include "engine/io/sha256.h"
#include "engine/kernels/arithmetic.h"
#include "engine/kernels/kernels.h"
#include "engine/loop/engine_loop.h"

namespace tandem::engine {
namespace {

// Blocks that one step takes from the disk, in bytes: some tens of milliseconds.
constexpr int64_t kArchiveBytes = 32 << 20;

// Intervals of EngineOptions::prefix_idle: a block is given back at most a quarter late.
constexpr int64_t kIdleAges = 4;
// Memory that one step gives back: a few milliseconds.
constexpr int64_t kReturnedBytes = 64 << 20;

// Cached keys and values are reused only by the arithmetic that computed them. The model's
// fingerprint names weights and compute dtype.
Sha256Digest PrefixSalt(const LoadedModel& model, const KernelTable& kernels) {
  Sha256 hash;
  hash.Update(std::as_bytes(std::span(model.model->fingerprint())));
  hash.Update(std::as_bytes(std::span(ArithmeticOf(kernels))));
  hash.Update(std::as_bytes(std::span(model.kv_dtype)));
  return hash.Finish();
}

// Describes the layout of a block: the places of each layer's keys and values, and each table's
// window.
std::string BlockMeaning(const KvCache::Shape& shape) {
  std::string text = "format " + std::to_string(static_cast<int>(shape.format));
  for (const KvWindow& window : shape.windows) {
    text += " window " + std::to_string(static_cast<int>(window.kind)) + " " +
            std::to_string(window.tokens);
  }
  for (const KvCache::Layer& layer : shape.layers) {
    text += " layer " + std::to_string(layer.table) + " " + std::to_string(layer.key_bytes) + " " +
            std::to_string(layer.value_bytes);
  }
  return text;
}

// Size and time of the running program's file: another build may compute other bits.
std::string ProgramIdentity() {
  struct stat status {};
  if (::stat("/proc/self/exe", &status) != 0) return "unknown";
  return std::to_string(status.st_size) + " " + std::to_string(status.st_mtim.tv_sec) + "." +
         std::to_string(status.st_mtim.tv_nsec);
}

}  // namespace

int64_t EngineLoop::ArchiveBlocks(const KvCache::Shape& shape) {
  return std::max<int64_t>(1, kArchiveBytes / std::max<int64_t>(1, shape.block_bytes()));
}

// Keys and values on disk outlive the program, so their directory also names what it computes with.
// A directory that cannot be used costs the cache on disk only.
void EngineLoop::OpenPrefixes(const KvCache::Shape& shape) {
  const Sha256Digest salt = PrefixSalt(model_, ops_.kernels());
  prefix_index_.emplace(salt, shape.windows);
  if (options_.prefix_dir.empty() || !options_.prefix_cache) return;
  const char* reason = state_pool_ ? "the model has recurrent layers" : nullptr;
  if (kv_->shape().block_bytes() == 0) reason = "the model keeps no keys";
  if (reason != nullptr) {
    spdlog::warn("prefix_cache_not_on_disk path={} reason=\"{}\"", options_.prefix_dir.string(),
                 reason);
    return;
  }
  Sha256 hash;
  hash.Update(std::as_bytes(std::span(salt)));
  hash.Update(model_.fingerprint + " " + ProgramIdentity() + " " + BlockMeaning(shape));
  const std::optional<Error> error = ErrorOf([&] {
    const std::string& weights = model_.model->content_hash();
    const KvArchive::Id id{Sha256Of(std::as_bytes(std::span(weights))), hash.Finish()};
    archive_.emplace(options_.prefix_dir, id, options_.prefix_dir_bytes, *kv_);
  });
  if (error) {
    spdlog::error("prefix_cache_not_on_disk path={} error=\"{}\"", options_.prefix_dir.string(),
                  error->what());
    return;
  }
  spdlog::info("prefix_cache_on_disk path={} blocks={}", options_.prefix_dir.string(),
               archive_->files().n_files());
}

// Gives back the memory of idle conversations. A step gives back a part, so that none waits for
// the system's page tables.
void EngineLoop::ReleaseIdleBlocks() {
  if (options_.prefix_idle.count() <= 0 || kv_->shape().block_bytes() == 0) return;
  const Clock::time_point now = Clock::now();
  if (now >= next_age_) {
    blocks_->Age();
    next_age_ = now + options_.prefix_idle / kIdleAges;
    has_idle_blocks_ = true;
  }
  if (!has_idle_blocks_) return;
  const int64_t most = std::max<int64_t>(1, kReturnedBytes / kv_->shape().block_bytes());
  // The first interval may have begun before the release.
  const Scheduler::Forgotten forgotten = scheduler_->ForgetIdle(kIdleAges + 1, most);
  for (const BlockPool::Range& range : forgotten.ranges) kv_->Discard(range.first, range.n);
  stats_.idle_blocks_total += forgotten.n_blocks;
  has_idle_blocks_ = forgotten.n_blocks == most;
}

// A burst leaves keys and values in every block it used, and its texts in the allocator's arenas.
// An idle loop wakes every second; only an idle wake-up calls this.
void EngineLoop::ReleaseIdleMemory() {
  if (options_.idle_release.count() <= 0 || Clock::now() - step_began_ < options_.idle_release) {
    return;
  }
  has_released_ = true;
  scheduler_->ForgetPrefixes();
  kv_->Discard();
  states_->Discard();
  if (draft_) draft_->Discard();
  ::malloc_trim(0);
  ++stats_.idle_releases_total;
  spdlog::debug("idle engine released key and value memory bytes={}", kv_->bytes());
}

}  // namespace tandem::engine
