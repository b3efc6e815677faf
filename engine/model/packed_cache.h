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
    kSound,    // every byte matches its checksum
    kDamaged,  // a byte changed or a part is missing; the next load rebuilds it
    kStale,    // unfinished, or packed by another version of the program; never loaded
  };
  std::filesystem::path path;  // its directory
  State state = State::kSound;
  int64_t bytes = 0;        // of the packed file
  std::string reason = {};  // a clause; empty when sound
};

// Reads every packed file below `cache_dir` to its end and changes nothing. Sorted by path; empty
// when there is no cache. Skips an entry that another process removes meanwhile. Throws kIo for a
// file that cannot be opened.
std::vector<PackedEntry> InspectPackedCache(const std::filesystem::path& cache_dir,
                                            ThreadPool& pool);

}  // namespace tandem::engine
