#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "engine/base/thread_pool.h"

namespace tandem::engine {

// One entry of the cache of packed weights, as `tandem doctor --cache` shows it.
struct PackedEntry {
  enum class State {
    kSound,    // every byte has its checksum
    kDamaged,  // a byte changed, or a part is missing; the next load makes it again
    kStale,    // unfinished, or packed by another version of the program; no load will use it
  };
  std::filesystem::path path;  // its directory
  State state = State::kSound;
  int64_t bytes = 0;        // of the packed file
  std::string reason = {};  // half a sentence; empty when sound
};

// Reads every packed file below `cache_dir` to its end and changes nothing. Sorted by path; empty
// when there is no cache. An entry that another process removes meanwhile is left out. Throws kIo
// for a file that cannot be opened.
std::vector<PackedEntry> InspectPackedCache(const std::filesystem::path& cache_dir,
                                            ThreadPool& pool);

}  // namespace tandem::engine
