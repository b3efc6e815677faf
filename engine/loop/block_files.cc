#include "engine/loop/block_files.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <optional>
#include <string_view>
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
constexpr const char* kTemporary = ".writing-";
// After a failed write; a full disk stays full for a while.
constexpr auto kPause = std::chrono::seconds(30);
constexpr int kWriterNice = 15;

Sha256Digest DigestOf(const Sha256Digest& name, std::span<const std::byte> bytes) {
  Sha256 hash;
  hash.Update(std::as_bytes(std::span(name)));
  hash.Update(bytes);
  return hash.Finish();
}

std::optional<Sha256Digest> FromHex(const std::string& text) {
  Sha256Digest digest{};
  if (text.size() != 2 * digest.size()) return std::nullopt;
  const auto value = [](char c) {
    if (c >= '0' && c <= '9') return c - '0';
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
  };
  for (size_t i = 0; i < digest.size(); ++i) {
    const int high = value(text[2 * i]);
    const int low = value(text[2 * i + 1]);
    if (high < 0 || low < 0) return std::nullopt;
    digest[i] = static_cast<uint8_t>(16 * high + low);
  }
  return digest;
}

std::vector<std::byte> HeaderOf(const Sha256Digest& digest) {
  std::vector<std::byte> header(BlockFiles::kHeaderBytes);
  std::memcpy(header.data(), kMagic.data(), kMagic.size());
  std::memcpy(header.data() + kDigestAt, digest.data(), digest.size());
  return header;
}

}  // namespace

BlockFiles::BlockFiles(Options options) : options_(std::move(options)) {
  TANDEM_CHECK(options_.block_bytes > 0);
  if (options_.limit_bytes < FileBytes()) {
    throw Error(ErrorCode::kInvalidArgument,
                "the size limit of the prefix cache on disk must be at least one block of " +
                    std::to_string(FileBytes()) + " bytes");
  }
  std::error_code error;
  fs::create_directories(options_.dir, error);
  if (error) ThrowSystemError("create", options_.dir, error.value());
  fs::permissions(options_.dir, fs::perms::owner_all, error);  // texts can be read from the keys
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

// Oldest use first. What a killed writer left goes; what is no block of ours stays.
void BlockFiles::List() {
  std::vector<std::pair<fs::file_time_type, Name>> found;
  int64_t n_foreign = 0;
  std::error_code error;
  for (fs::directory_iterator at(options_.dir, error), end; !error && at != end;
       at.increment(error)) {
    const std::string file = at->path().filename().string();
    std::error_code of_file;
    if (file.rfind(kTemporary, 0) == 0) {
      fs::remove(at->path(), of_file);
      continue;
    }
    const std::optional<Name> name = FromHex(file);
    const bool is_block = name && at->is_regular_file(of_file) &&
                          at->file_size(of_file) == static_cast<uintmax_t>(FileBytes());
    if (is_block) {
      found.emplace_back(at->last_write_time(of_file), *name);
    } else {
      ++n_foreign;
    }
  }
  if (error) ThrowSystemError("list", options_.dir, error.value());
  if (n_foreign > 0) {
    spdlog::warn("prefix_cache_files_ignored path={} files={} reason=\"not blocks of this model\"",
                 options_.dir.string(), n_foreign);
  }
  std::sort(found.begin(), found.end());
  for (const auto& [time, name] : found) Add(name);
}

bool BlockFiles::Has(const Name& name) const {
  const std::lock_guard lock(mutex_);
  return files_.contains(name);
}

int64_t BlockFiles::n_files() const {
  const std::lock_guard lock(mutex_);
  return static_cast<int64_t>(files_.size());
}

void BlockFiles::Write(const Name& name, const std::function<void(std::span<std::byte>)>& fill) {
  {
    const std::lock_guard lock(mutex_);
    const auto waiting = static_cast<int64_t>(queue_.size() + 1) * options_.block_bytes;
    if (files_.contains(name) || queued_.contains(name)) return;
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
  auto paused_until = std::chrono::steady_clock::time_point::min();
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return is_ending_ || !queue_.empty(); });
    if (queue_.empty()) return;
    const Piece piece = std::move(queue_.front());
    queue_.pop_front();
    is_writing_ = true;
    lock.unlock();
    if (std::chrono::steady_clock::now() >= paused_until) {
      if (const std::optional<Error> error = Attempt([&] { WriteFile(piece); })) {
        paused_until = std::chrono::steady_clock::now() + kPause;
        spdlog::warn("prefix_cache_not_written path={} pause_s={} error=\"{}\"",
                     options_.dir.string(), kPause.count(), error->what());
      }
    }
    lock.lock();
    queued_.erase(piece.name);
    is_writing_ = false;
    changed_.notify_all();
  }
}

// No fsync: a reader verifies what a power cut has left.
void BlockFiles::WriteFile(const Piece& piece) {
  const fs::path path = PathOf(piece.name);
  const fs::path temporary =
      options_.dir / (kTemporary + std::to_string(::getpid()) + "-" + path.filename().string());
  UndoOnFailure(
      [&] {
        FileDescriptor file(
            ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
        if (file.get() < 0) ThrowSystemError("create", temporary, errno);
        WriteAll(file, HeaderOf(DigestOf(piece.name, piece.bytes)), temporary);
        WriteAll(file, piece.bytes, temporary);
        file.Close(temporary);
        fs::rename(temporary, path);
      },
      [&] {
        std::error_code ignored;
        fs::remove(temporary, ignored);
      });
  ++writes_total_;
  Add(piece.name);
}

// Makes room for the file by the limit.
void BlockFiles::Add(const Name& name) {
  const auto most = static_cast<size_t>(options_.limit_bytes / FileBytes());
  std::vector<Name> removed;
  {
    const std::lock_guard lock(mutex_);
    if (files_.contains(name)) return;
    order_.push_back(name);
    files_.emplace(name, std::prev(order_.end()));
    while (order_.size() > most) {
      removed.push_back(order_.front());
      files_.erase(order_.front());
      order_.pop_front();
    }
  }
  std::error_code ignored;
  for (const Name& old : removed) fs::remove(PathOf(old), ignored);
}

void BlockFiles::Drop(const Name& name) {
  const std::lock_guard lock(mutex_);
  const auto found = files_.find(name);
  if (found == files_.end()) return;
  order_.erase(found->second);
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
    order_.splice(order_.end(), order_, found->second);
  }
  const std::optional<Error> error = Attempt([&] {
    const fs::path path = PathOf(name);
    struct stat status {};
    const FileDescriptor file = OpenRegularFile(path, status);
    std::vector<std::byte> header(kHeaderBytes);
    ReadAllAt(file, header, 0, path);
    ReadAllAt(file, bytes, kHeaderBytes, path);
    if (header != HeaderOf(DigestOf(name, bytes))) {
      throw Error(ErrorCode::kDataLoss, "its content does not have the hash that it names");
    }
    ::futimens(file.get(), nullptr);  // the order of use after a restart; may fail
  });
  if (!error) {
    ++reads_total_;
    return true;
  }
  Drop(name);
  // Another process may have removed it.
  if (error->code() == ErrorCode::kNotFound) return false;
  ReportUnusable(PathOf(name), error->what());
  std::error_code ignored;
  fs::remove(PathOf(name), ignored);
  return false;
}

}  // namespace tandem::engine
