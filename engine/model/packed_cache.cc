#include "engine/model/packed_cache.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <system_error>
#include <utility>

#include "engine/base/attempt.h"
#include "engine/base/error.h"
#include "engine/io/mapped_file.h"
#include "engine/io/sha256.h"
#include "engine/model/packed_sums.h"
#include "engine/model/packed_weights.h"

namespace tandem::engine {
namespace {

namespace fs = std::filesystem;
using State = PackedEntry::State;

template <class Int>
Int IntAt(std::span<const std::byte> bytes, size_t at) {
  Int value{};
  std::memcpy(&value, bytes.data() + at, sizeof(value));
  return value;
}

void Judge(PackedEntry& entry, State state, std::string reason) {
  entry.state = state;
  entry.reason = std::move(reason);
}

// Offsets as in the format in packed_weights.h.
void JudgeHeader(PackedEntry& entry, std::span<const std::byte> bytes) {
  if (bytes.size() < kPackedHeaderBytes ||
      std::memcmp(bytes.data(), kPackedMagic.data(), kPackedMagic.size()) != 0) {
    return Judge(entry, State::kDamaged, "it does not start with the header of a packed file");
  }
  if (IntAt<uint32_t>(bytes, 8) != kPackedFormatVersion ||
      IntAt<uint32_t>(bytes, 12) != kPanelLayoutVersion) {
    return Judge(entry, State::kStale, "another version of the program wrote it");
  }
  const auto table_bytes = IntAt<uint64_t>(bytes, 16);
  if (IntAt<uint64_t>(bytes, 24) != bytes.size() ||
      table_bytes > bytes.size() - kPackedHeaderBytes) {
    return Judge(entry, State::kDamaged, "its size differs from the size in its header");
  }
  Sha256 hash;
  hash.Update(bytes.first(32));
  hash.Update(bytes.subspan(kPackedHeaderBytes, table_bytes));
  const Sha256Digest digest = hash.Finish();
  if (std::memcmp(digest.data(), bytes.data() + 32, digest.size()) != 0) {
    return Judge(entry, State::kDamaged, "its header is damaged");
  }
  if (!entry.path.filename().string().ends_with("-" + ToHex(digest).substr(0, 32))) {
    return Judge(entry, State::kStale, "its name does not match its content");
  }
}

PackedEntry Inspect(const fs::path& path, ThreadPool& pool) {
  PackedEntry entry;
  entry.path = path;
  std::error_code error;
  if (!fs::is_regular_file(path / kPackedFileName, error)) {
    Judge(entry, State::kStale, "it contains no packed file");
    return entry;
  }
  const std::shared_ptr<const MappedFile> file = MappedFile::Open(path / kPackedFileName);
  entry.bytes = file->identity().bytes;
  JudgeHeader(entry, file->bytes());
  if (entry.state != State::kSound) return entry;
  const std::optional<std::string> sums = ReadPackedSums(path / kPackedSumsName);
  if (!sums) {
    Judge(entry, State::kStale, "it has no checksums");
  } else if (const std::optional<std::string> damage = FindDamage(*file, *sums, pool)) {
    Judge(entry, State::kDamaged, *damage);
  }
  return entry;
}

}  // namespace

std::vector<PackedEntry> InspectPackedCache(const fs::path& cache_dir, ThreadPool& pool) {
  std::vector<fs::path> paths;
  std::error_code error;
  for (fs::directory_iterator at(cache_dir / "packed", error), end; !error && at != end;
       at.increment(error)) {
    paths.push_back(at->path());
  }
  std::sort(paths.begin(), paths.end());
  std::vector<PackedEntry> entries;
  for (const fs::path& path : paths) {
    // An entry may vanish meanwhile: a server evicts it.
    ErrorOf({ErrorCode::kNotFound}, [&] { entries.push_back(Inspect(path, pool)); });
  }
  return entries;
}

}  // namespace tandem::engine
