#include "engine/loop/block_files.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "engine/base/attempt.h"
#include "engine/base/check.h"
#include "engine/base/log.h"
#include "engine/base/out_of_memory.h"
#include "engine/base/thread_name.h"
#include "engine/io/posix_file.h"

namespace tandem::engine {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kMagic = "tandem kv block 1";  // the format's version
constexpr size_t kDigestAt = 32;
constexpr int kWriterNice = 15;
// The directory is listed again after this part of the limit was written.
constexpr int64_t kListingsPerLimit = 16;

Sha256Digest DigestOf(const Sha256Digest& name, std::span<const std::byte> bytes) {
  Sha256 hash;
  hash.Update(std::as_bytes(std::span(name)));
  hash.Update(bytes);
  return hash.Finish();
}

std::vector<std::byte> HeaderOf(const Sha256Digest& digest) {
  std::vector<std::byte> header(BlockFiles::kHeaderBytes);
  std::memcpy(header.data(), kMagic.data(), kMagic.size());
  std::memcpy(header.data() + kDigestAt, digest.data(), digest.size());
  return header;
}

const BlockFiles::Options& Checked(const BlockFiles::Options& options) {
  TANDEM_CHECK(options.block_bytes > 0);
  const int64_t file_bytes = BlockFiles::kHeaderBytes + options.block_bytes;
  if (options.limit_bytes < file_bytes) {
    throw Error(ErrorCode::kInvalidArgument,
                "the size limit of the prefix cache on disk must be at least one block of " +
                    std::to_string(file_bytes) + " bytes");
  }
  return options;
}

}  // namespace

BlockFiles::BlockFiles(Options options)
    : options_(std::move(options)), dir_(Checked(options_).dir) {
  List();
  writer_ = std::thread([this] { WriteQueued(); });
}

BlockFiles::~BlockFiles() {
  {
    const std::lock_guard lock(mutex_);
    is_ending_ = true;
  }
  changed_.notify_all();
  writer_.join();
}

// Learns which files others added and removed, and keeps the limit.
void BlockFiles::List() {
  std::unordered_set<Name, DigestHash> unseen;
  {
    const std::lock_guard lock(mutex_);
    unseen.insert(order_.begin(), order_.end());
  }
  const auto [found, n_others] = dir_.List(FileBytes());
  for (const BlockDir::File& file : found) {
    if (unseen.erase(file.name) == 0) Add(file.name);
  }
  for (const Name& name : unseen) Drop(name);
  if (n_others > 0 && !std::exchange(has_reported_others_, true)) {
    spdlog::warn("prefix_cache_files_ignored path={} files={} reason=\"not blocks of this model\"",
                 dir_.path().string(), n_others);
  }
  unlisted_bytes_ = 0;
  share_bytes_ = options_.limit_bytes;
  if (options_.share) {
    share_bytes_ = std::min(share_bytes_, options_.share(n_files() * FileBytes()));
  }
  RemoveBeyondLimit();
}

bool BlockFiles::IsUsable(const Name& name) const {
  const auto found = files_.find(name);
  if (found == files_.end()) return false;
  const std::optional<Clock::time_point>& until = found->second.unusable_until;
  return !until || Clock::now() >= *until;
}

bool BlockFiles::Has(const Name& name) const {
  const std::lock_guard lock(mutex_);
  return IsUsable(name);
}

int64_t BlockFiles::n_files() const {
  const std::lock_guard lock(mutex_);
  return static_cast<int64_t>(files_.size());
}

int64_t BlockFiles::n_queued() const {
  const std::lock_guard lock(mutex_);
  return static_cast<int64_t>(queue_.size());
}

void BlockFiles::Write(const Name& name, const std::function<void(std::span<std::byte>)>& fill) {
  {
    const std::lock_guard lock(mutex_);
    const auto waiting = static_cast<int64_t>(queue_.size() + 1) * options_.block_bytes;
    if (IsUsable(name) || queued_.contains(name)) return;
    if (waiting > std::max(options_.queue_bytes, options_.block_bytes)) return;
  }
  // Without memory the block is not kept.
  HasMemoryFor([&] {
    Piece piece{name, std::vector<std::byte>(static_cast<size_t>(options_.block_bytes))};
    fill(piece.bytes);
    const std::lock_guard lock(mutex_);
    queued_.emplace(name, true);
    if (!HasMemoryFor([&] { queue_.push_back(std::move(piece)); })) queued_.erase(name);
  });
  changed_.notify_all();
}

void BlockFiles::Flush() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return queue_.empty() && !is_writing_; });
}

void BlockFiles::WriteQueued() {
  NameThisThread("tandem-prefixes");
  // A low share of the CPU; on Linux the setting is per thread. A refusal only loses it.
  (void)::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), kWriterNice);
  auto paused_until = Clock::time_point::min();
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return is_ending_ || !queue_.empty(); });
    if (queue_.empty()) return;
    const Piece piece = std::move(queue_.front());
    queue_.pop_front();
    is_writing_ = true;
    lock.unlock();
    if (Clock::now() >= paused_until) {
      if (const std::optional<Error> error = Attempt([&] { WriteFile(piece); })) {
        paused_until = Clock::now() + options_.pause;
        spdlog::warn("prefix_cache_not_written path={} pause_ms={} error=\"{}\"",
                     dir_.path().string(), options_.pause.count(), error->what());
      }
    }
    lock.lock();
    queued_.erase(piece.name);
    is_writing_ = false;
    changed_.notify_all();
  }
}

void BlockFiles::WriteFile(const Piece& piece) {
  if (FreeDiskBytes(dir_.path()) < options_.reserve_bytes + FileBytes()) {
    throw Error(ErrorCode::kIo, "the disk has less than " + std::to_string(options_.reserve_bytes) +
                                    " bytes free, which the prefix cache leaves to others");
  }
  dir_.Write(piece.name, {HeaderOf(DigestOf(piece.name, piece.bytes)), piece.bytes});
  ++writes_total_;
  Add(piece.name);
  unlisted_bytes_ += FileBytes();
  if (unlisted_bytes_ >= options_.limit_bytes / kListingsPerLimit) {
    List();
  } else {
    RemoveBeyondLimit();
  }
}

void BlockFiles::Add(const Name& name) {
  const std::lock_guard lock(mutex_);
  if (const auto found = files_.find(name); found != files_.end()) {
    found->second.unusable_until.reset();
    return;
  }
  order_.push_back(name);
  if (HasMemoryFor([&] { files_.emplace(name, File{std::prev(order_.end())}); })) return;
  order_.pop_back();
}

void BlockFiles::RemoveBeyondLimit() {
  const auto most = static_cast<size_t>(std::max<int64_t>(1, share_bytes_ / FileBytes()));
  std::vector<Name> removed;
  {
    const std::lock_guard lock(mutex_);
    if (order_.size() <= most) return;
    removed.reserve(order_.size() - most);
    while (order_.size() > most) {
      removed.push_back(order_.front());
      files_.erase(order_.front());
      order_.pop_front();
    }
  }
  for (const Name& old : removed) dir_.Remove(old);
}

void BlockFiles::Drop(const Name& name) {
  const std::lock_guard lock(mutex_);
  const auto found = files_.find(name);
  if (found == files_.end()) return;
  order_.erase(found->second.at);
  files_.erase(found);
}

// One line for all of them: a damaged disk may hold thousands.
void BlockFiles::ReportUnusable(const fs::path& path, const std::string& why) {
  const std::lock_guard lock(mutex_);
  if (std::exchange(has_reported_, true)) return;
  spdlog::warn("prefix_cache_file_unusable path={} reason=\"{}\" further=\"not logged\"",
               path.string(), why);
}

bool BlockFiles::Read(const Name& name, std::span<std::byte> bytes) {
  TANDEM_CHECK(static_cast<int64_t>(bytes.size()) == options_.block_bytes);
  {
    const std::lock_guard lock(mutex_);
    const auto found = files_.find(name);
    if (found == files_.end()) return false;
    order_.splice(order_.end(), order_, found->second.at);
  }
  const std::optional<Error> error = ErrorOf([&] {
    std::vector<std::byte> header(kHeaderBytes);
    dir_.Read(name, header, bytes);
    if (header != HeaderOf(DigestOf(name, bytes))) {
      throw Error(ErrorCode::kDataLoss, "its content does not have the hash that it names");
    }
  });
  if (!error) {
    ++reads_total_;
    return true;
  }
  // Another process may have removed it.
  if (error->code() != ErrorCode::kNotFound) ReportUnusable(dir_.PathOf(name), error->what());
  if (error->code() == ErrorCode::kNotFound || error->code() == ErrorCode::kDataLoss) {
    Drop(name);
    if (error->code() == ErrorCode::kDataLoss) dir_.Remove(name);
    return false;
  }
  // The file may be whole: too many open files, or a disk that is away for a moment.
  const std::lock_guard lock(mutex_);
  const auto found = files_.find(name);
  if (found != files_.end()) found->second.unusable_until = Clock::now() + options_.pause;
  return false;
}

}  // namespace tandem::engine
