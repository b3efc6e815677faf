#include "engine/io/mapped_file.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <utility>

#include "engine/base/check.h"
#include "engine/io/block_writer.h"
#include "engine/io/posix_file.h"

namespace tandem::engine {
namespace {

constexpr size_t kPageBytes = 4096;

// Like mmap, but maps a file of at least kHugePageBytes at a multiple of that size. Only then can
// the kernel map the huge pages of its cache as such.
void* MapAligned(int file, size_t bytes) {
  if (bytes < kHugePageBytes) return mmap(nullptr, bytes, PROT_READ, MAP_SHARED, file, 0);

  const size_t reserved = RoundUp<size_t>(bytes, kPageBytes) + kHugePageBytes;
  void* reservation =
      mmap(nullptr, reserved, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reservation == MAP_FAILED) return MAP_FAILED;
  auto* const begin = static_cast<std::byte*>(reservation);
  auto* const end = begin + reserved;
  std::byte* const aligned =
      begin +
      (kHugePageBytes - reinterpret_cast<uintptr_t>(begin) % kHugePageBytes) % kHugePageBytes;
  void* at = mmap(aligned, bytes, PROT_READ, MAP_SHARED | MAP_FIXED, file, 0);
  if (at == MAP_FAILED) {
    const int error = errno;
    munmap(reservation, reserved);
    errno = error;
    return MAP_FAILED;
  }
  std::byte* const mapped_end = aligned + RoundUp<size_t>(bytes, kPageBytes);
  if (aligned > begin) munmap(begin, static_cast<size_t>(aligned - begin));
  if (end > mapped_end) munmap(mapped_end, static_cast<size_t>(end - mapped_end));
  // Advice only: pages that are not in the page cache yet are read as huge pages where possible.
  madvise(at, bytes, MADV_HUGEPAGE);
  return at;
}

FileIdentity IdentityOf(const struct stat& status) {
  return {.device = status.st_dev,
          .inode = status.st_ino,
          .bytes = status.st_size,
          .modified_ns = int64_t{status.st_mtim.tv_sec} * 1'000'000'000 + status.st_mtim.tv_nsec};
}

}  // namespace

std::shared_ptr<const MappedFile> MappedFile::Open(const std::filesystem::path& path) {
  struct stat status {};
  const FileDescriptor file = OpenRegularFile(path, status);
  const FileIdentity identity = IdentityOf(status);
  const auto bytes = static_cast<size_t>(status.st_size);
  if (bytes == 0) return std::shared_ptr<const MappedFile>(new MappedFile(path, {}, identity));

  void* at = MapAligned(file.get(), bytes);
  if (at == MAP_FAILED) ThrowSystemError("map", path, errno);
  const std::shared_ptr<MappedFile> mapped(
      new MappedFile(path, {static_cast<const std::byte*>(at), bytes}, identity));
  mapped->watch_.emplace(
      std::span(static_cast<const std::byte*>(at), RoundUp<size_t>(bytes, kPageBytes)));
  return mapped;
}

std::optional<FileIdentity> MappedFile::CurrentIdentity() const {
  struct stat status {};
  if (stat(path_.c_str(), &status) != 0) return std::nullopt;
  return IdentityOf(status);
}

void MappedFile::CheckUnchanged() const {
  const std::string advice =
      "; write new model files under another name, rename them when they are complete, then load "
      "the model again";
  if (is_damaged()) {
    throw Error(
        ErrorCode::kDataLoss,
        path_.string() + " was truncated or became unreadable while it was in use" + advice);
  }
  const std::optional<FileIdentity> now = CurrentIdentity();
  if (!now) return;  // removed: the mapping keeps the bytes
  if (now->device != identity_.device || now->inode != identity_.inode || now == identity_) return;
  throw Error(ErrorCode::kDataLoss, path_.string() + " changed while it was in use (it had " +
                                        std::to_string(identity_.bytes) + " bytes, now " +
                                        std::to_string(now->bytes) + ")" + advice);
}

void MappedFile::LetGo(std::span<const std::byte> part) const {
  const auto begin = reinterpret_cast<uintptr_t>(bytes_.data());
  const auto from = std::max(begin, reinterpret_cast<uintptr_t>(part.data()));
  const auto to =
      std::min(begin + bytes_.size(), reinterpret_cast<uintptr_t>(part.data()) + part.size());
  if (from >= to) return;
  // Includes the whole pages at both ends. A neighbour that still reads such a page only faults it
  // in again.
  const uintptr_t first = from / kPageBytes * kPageBytes;
  (void)madvise(reinterpret_cast<void*>(first), to - first, MADV_DONTNEED);  // only advice
}

MappedFile::MappedFile(std::filesystem::path path, std::span<const std::byte> bytes,
                       const FileIdentity& identity)
    : path_(std::move(path)), bytes_(bytes), identity_(identity) {}

MappedFile::~MappedFile() {
  watch_.reset();  // before the addresses can be reused
  if (!bytes_.empty()) munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

}  // namespace tandem::engine
