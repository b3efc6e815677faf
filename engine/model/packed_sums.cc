#include "engine/model/packed_sums.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include "engine/base/progress.h"
#include "engine/io/atomic_write.h"
#include "engine/io/crc32c.h"

namespace tandem::engine {
namespace {

uint32_t SumAt(std::string_view sums, size_t i) {
  uint32_t sum = 0;
  std::memcpy(&sum, sums.data() + i * sizeof(sum), sizeof(sum));
  return sum;
}

void Append(std::string& sums, uint32_t sum) {
  sums.append(reinterpret_cast<const char*>(&sum), sizeof(sum));
}

}  // namespace

void PackedSums::Add(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const size_t n = std::min(bytes.size(), kSumPieceBytes - in_piece_);
    crc_ = Crc32c(crc_, bytes.first(n));
    in_piece_ += n;
    bytes = bytes.subspan(n);
    if (in_piece_ == kSumPieceBytes) EndPiece();
  }
}

void PackedSums::EndPiece() {
  Append(sums_, crc_);
  crc_ = 0;
  in_piece_ = 0;
}

std::string PackedSums::Finish() {
  if (in_piece_ > 0) EndPiece();
  Append(sums_, Crc32c(0, std::as_bytes(std::span(sums_))));
  return std::move(sums_);
}

std::optional<std::string> ReadPackedSums(const std::filesystem::path& path) {
  constexpr size_t kMaxBytes = size_t{64} << 20;  // of a packed file of 64 TiB
  std::error_code error;
  const auto bytes = std::filesystem::file_size(path, error);
  if (error || bytes > kMaxBytes) return std::nullopt;
  return ReadWholeFile(path, kMaxBytes);
}

std::optional<std::string> FindDamage(const MappedFile& file, std::string_view sums,
                                      ThreadPool& pool) {
  const std::span<const std::byte> bytes = file.bytes();
  const size_t n_pieces = (bytes.size() + kSumPieceBytes - 1) / kSumPieceBytes;
  if (sums.size() != (n_pieces + 1) * sizeof(uint32_t))
    return "its checksum file has the wrong size";
  const std::string_view of_pieces = sums.substr(0, n_pieces * sizeof(uint32_t));
  if (SumAt(sums, n_pieces) != Crc32c(0, std::as_bytes(std::span(of_pieces)))) {
    return "its checksum file is damaged";
  }
  ProgressTask task("loading packed weights", "bytes", static_cast<int64_t>(bytes.size()));
  std::atomic<size_t> first_bad{n_pieces};
  pool.ParallelFor(static_cast<int64_t>(n_pieces), [&](int64_t index, int) {
    const auto i = static_cast<size_t>(index);
    const size_t begin = i * kSumPieceBytes;
    const auto piece = bytes.subspan(begin, std::min(kSumPieceBytes, bytes.size() - begin));
    const bool is_good = Crc32c(0, piece) == SumAt(sums, i);
    file.LetGo(piece);
    task.Add(static_cast<int64_t>(piece.size()));
    size_t known = first_bad.load();
    while (!is_good && i < known && !first_bad.compare_exchange_weak(known, i)) {
    }
  });
  if (file.is_damaged()) return "part of it could not be read";
  if (first_bad == n_pieces) return std::nullopt;
  return "a byte between " + std::to_string(first_bad * kSumPieceBytes) + " and " +
         std::to_string(std::min(bytes.size(), (first_bad + 1) * kSumPieceBytes)) + " changed";
}

}  // namespace tandem::engine
