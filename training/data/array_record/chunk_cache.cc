#include "training/data/array_record/chunk_cache.h"

namespace tandem::training {

int64_t ChunkCache::NewFile() {
  const std::lock_guard lock(mutex_);
  return n_files_++;
}

std::shared_ptr<const ArrayRecords> ChunkCache::Find(int64_t file, size_t chunk) {
  const std::lock_guard lock(mutex_);
  const auto found = find_.find({file, chunk});
  if (found == find_.end()) return nullptr;
  entries_.splice(entries_.begin(), entries_, found->second);
  return found->second->records;
}

void ChunkCache::Add(int64_t file, size_t chunk, std::shared_ptr<const ArrayRecords> records) {
  const std::lock_guard lock(mutex_);
  const Key key(file, chunk);
  if (find_.contains(key)) return;  // another thread was faster
  bytes_ += records->memory_bytes();
  entries_.push_front({key, std::move(records)});
  find_.emplace(key, entries_.begin());
  while (bytes_ > max_bytes_ && entries_.size() > 1) {
    bytes_ -= entries_.back().records->memory_bytes();
    find_.erase(entries_.back().key);
    entries_.pop_back();
  }
}

}  // namespace tandem::training
