#include "engine/objects/fetched_path.h"

#include <fcntl.h>
#include <sys/file.h>

#include <algorithm>
#include <atomic>
#include <future>
#include <map>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "engine/base/attempt.h"
#include "engine/base/durable_dirs.h"
#include "engine/base/log.h"
#include "engine/base/progress.h"
#include "engine/base/thread_name.h"
#include "engine/hub/cache.h"
#include "engine/hub/pull.h"
#include "engine/hub/reference.h"
#include "engine/io/atomic_write.h"
#include "engine/io/posix_file.h"
#include "engine/io/sha256.h"
#include "engine/objects/object_tree.h"

namespace tandem::engine {
namespace {

namespace fs = std::filesystem;

constexpr std::chrono::milliseconds kFetchReport{200};
constexpr size_t kHashDigits = 40;
constexpr size_t kMaxLatestBytes = 4096;
constexpr size_t kMaxGgufParts = 1000;
constexpr uint64_t kMaxTreeBytes = uint64_t{1} << 60;

std::string HashOf(std::string_view text) {
  return ToHex(Sha256Of(std::as_bytes(std::span(text.data(), text.size())))).substr(0, kHashDigits);
}

std::string BlobNameOf(const ObjectInfo& info) {
  return HashOf(info.key + '\0' + std::to_string(info.size) + '\0' + info.etag);
}

// Letters of a name that are safe in a folder's name; others become '_'.
std::string PlainName(std::string_view text) {
  std::string out(text.substr(0, 60));
  for (char& c : out) {
    const bool is_plain = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') ||
                          (c >= 'A' && c <= 'Z') || c == '.' || c == '_';
    if (!is_plain) c = '_';
  }
  return out;
}

std::string_view LastPart(std::string_view key) {
  while (key.ends_with('/')) key.remove_suffix(1);
  return key.substr(key.rfind('/') + 1);
}

fs::path FolderOf(const ObjectUrl& url, const ObjectOptions& options) {
  const std::string hash = HashOf(options.http.endpoint + "\n" + url.Text()).substr(0, 12);
  return options.http.cache_dir /
         ("objects--" + std::string(url.kind == StoreKind::kS3 ? "s3" : "gs") + "--" +
          PlainName(url.bucket) + "--" + PlainName(LastPart(url.key)) + "--" + hash);
}

// The objects to fetch, and where their names begin.
struct Wanted {
  ObjectTree tree;
  std::string prefix;
  std::string file;  // the file that was named; empty: the directory
};

// "model-00001-of-00003.gguf" -> the names of its three parts.
std::vector<std::string> PartNames(const std::string& name) {
  const size_t n_parts = PartsOfGguf(name);
  if (n_parts <= 1 || n_parts > kMaxGgufParts) return {name};
  std::vector<std::string> names;
  const size_t number = name.rfind("-of-") - 5;
  for (size_t i = 1; i <= n_parts; ++i) {
    std::string digits = std::to_string(i);
    digits.insert(0, 5 - std::min<size_t>(5, digits.size()), '0');
    names.push_back(std::string(name).replace(number, 5, digits));
  }
  return names;
}

Wanted Describe(ObjectClient& client, const ObjectUrl& url) {
  Wanted wanted;
  if (!url.key.empty() && !url.key.ends_with('/')) {
    if (client.Find(url.key)) {
      wanted.file = std::string(LastPart(url.key));
      wanted.prefix = url.key.substr(0, url.key.size() - wanted.file.size());
      if (!IsSafeObjectName(wanted.file)) {
        throw Error(ErrorCode::kInvalidArgument, url.Text() + " cannot be a file's name");
      }
      for (const std::string& name : PartNames(wanted.file)) {
        std::optional<ObjectInfo> info = client.Find(wanted.prefix + name);
        if (!info) {
          throw Error(ErrorCode::kNotFound, client.store().Name(wanted.prefix + name) +
                                                " does not exist, but " + wanted.file +
                                                " says that it is one of several parts");
        }
        wanted.tree.files.push_back(*std::move(info));
      }
      return wanted;
    }
  }
  wanted.prefix = AsPrefix(url.key);
  wanted.tree = ListTree(client, wanted.prefix);
  return wanted;
}

// One fetch, on a thread of its own so that the caller can report progress.
class Fetch {
 public:
  Fetch(const ObjectUrl& url, const ObjectOptions& options, std::stop_token stop)
      : url_(url),
        folder_(FolderOf(url, options)),
        store_(url, options, std::move(stop)),
        client_(store_) {}

  fs::path Run() {
    const std::optional<fs::path> latest = Latest();
    if (store_.options().http.offline) {
      if (latest) return *latest;
      throw Error(ErrorCode::kNotFound, url_.Text() + " is not in the cache " + folder_.string() +
                                            ", and HF_HUB_OFFLINE forbids downloads");
    }
    Wanted wanted;
    const auto unreachable = ErrorOf({ErrorCode::kUnavailable, ErrorCode::kDeadlineExceeded},
                                     [&] { wanted = Describe(client_, url_); });
    if (unreachable) {
      if (!latest) throw Error(*unreachable);
      spdlog::warn("objects_unreachable url=\"{}\" using=\"{}\" reason=\"{}\"",
                   EscapeJson(url_.Text()), latest->string(), unreachable->what());
      return *latest;
    }
    MakeDirectories(folder_ / "blobs");
    MakeDirectories(folder_ / "trees");
    const FileDescriptor lock = Lock();
    return Complete(wanted);
  }

  std::atomic<uint64_t> bytes_total{0};
  std::atomic<uint64_t> bytes_done{0};

 private:
  fs::path TreeDir(const std::string& id) const { return folder_ / "trees" / id; }

  // The version of the last fetch, if all of it is there.
  std::optional<fs::path> Latest() const {
    std::error_code absent;
    if (!fs::is_regular_file(folder_ / "latest", absent)) return std::nullopt;
    const std::string text = ReadWholeFile(folder_ / "latest", kMaxLatestBytes);
    const size_t line = std::min(text.find('\n'), text.size());
    const std::string id = text.substr(0, line);
    const std::string file = line < text.size() ? text.substr(line + 1) : "";
    if (!IsCommit(id) || (!file.empty() && !IsSafeObjectName(file))) return std::nullopt;
    const fs::path path = file.empty() ? TreeDir(id) : TreeDir(id) / file;
    return fs::exists(path, absent) ? std::optional(path) : std::nullopt;
  }

  FileDescriptor Lock() {
    const fs::path path = folder_ / "lock";
    FileDescriptor file(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0664));
    if (file.get() < 0) ThrowSystemError("open", path, errno);
    for (bool is_told = false; flock(file.get(), LOCK_EX | LOCK_NB) != 0; is_told = true) {
      if (errno != EWOULDBLOCK && errno != EINTR) ThrowSystemError("lock", path, errno);
      if (!is_told) {
        spdlog::info("objects_wait url=\"{}\" reason=\"another process fetches it\"",
                     EscapeJson(url_.Text()));
      }
      store_.http().stop.Sleep(kFetchReport);
    }
    return file;
  }

  fs::path Complete(const Wanted& wanted) {
    std::string description;
    for (const ObjectInfo& info : wanted.tree.files) description += BlobNameOf(info) + "\n";
    const std::string id = HashOf(description);
    const fs::path dir = TreeDir(id);
    std::error_code absent;
    // A tree gets its name only when it is complete.
    if (!fs::is_directory(dir, absent)) {
      FetchBlobsOf(wanted);
      CheckUnchanged(client_, wanted.prefix, wanted.tree);
      BuildTree(wanted, dir);
    }
    WriteFileAtomically(folder_ / "latest", id + (wanted.file.empty() ? "" : "\n" + wanted.file));
    return wanted.file.empty() ? dir : dir / wanted.file;
  }

  void FetchBlobsOf(const Wanted& wanted) {
    std::vector<ObjectToFetch> files;
    uint64_t total = 0;
    uint64_t there = 0;
    for (const ObjectInfo& info : wanted.tree.files) {
      const fs::path blob = folder_ / "blobs" / BlobNameOf(info);
      std::error_code absent;
      if (fs::exists(blob, absent)) continue;
      total += info.size;
      if (total > kMaxTreeBytes) {
        throw Error(ErrorCode::kDataLoss,
                    url_.Text() + " is larger than the limit of " + HumanBytes(kMaxTreeBytes));
      }
      const uintmax_t partial = fs::file_size(blob.string() + ".incomplete", absent);
      if (!absent) there += std::min<uint64_t>(partial, info.size);
      files.push_back({info, blob});
    }
    if (files.empty()) return;
    CheckFreeSpace(folder_ / "blobs", total - there, total, url_.Text());
    bytes_total = total;
    FetchObjects(store_, std::move(files), [this](uint64_t n) { bytes_done += n; });
  }

  void BuildTree(const Wanted& wanted, const fs::path& dir) const {
    const fs::path next = folder_ / "trees" / "next";
    std::error_code failed;
    fs::remove_all(next, failed);  // of a killed process
    MakeDirectories(next);
    for (const ObjectInfo& info : wanted.tree.files) {
      const fs::path path = next / info.key.substr(wanted.prefix.size());
      MakeDirectories(path.parent_path());
      fs::create_hard_link(folder_ / "blobs" / BlobNameOf(info), path, failed);
      if (failed) ThrowSystemError("create the link", path, failed.value());
    }
    PublishPath(next, dir, IfThere::kRefuse);
  }

  const ObjectUrl url_;
  const fs::path folder_;
  ObjectStore store_;
  ObjectClient client_;
};

}  // namespace

fs::path FetchObjectPath(const ObjectUrl& url, const ObjectOptions& options,
                         std::stop_token outer) {
  std::stop_source stop;
  const std::stop_callback relay(outer, [stop]() mutable { stop.request_stop(); });
  const PullReport check_signals = StoppingOnSignals(nullptr, stop);
  Fetch fetch(url, options, stop.get_token());
  std::future<fs::path> result = std::async(std::launch::async, [&] {
    NameThisThread("tandem-objects");
    return fetch.Run();
  });
  std::optional<ProgressTask> task;
  bool is_ready = false;
  do {
    is_ready = result.wait_for(kFetchReport) == std::future_status::ready;
    const auto total = static_cast<int64_t>(fetch.bytes_total);
    if (!task && total > 0) task.emplace("fetching " + url.Text(), "bytes", total);
    if (task) task->Reach(static_cast<int64_t>(fetch.bytes_done));
    check_signals({});
  } while (!is_ready);
  fs::path path = result.get();
  if (task) {
    spdlog::info("objects_fetched url=\"{}\" bytes={} path=\"{}\"", EscapeJson(url.Text()),
                 fetch.bytes_done.load(), path.string());
  }
  return path;
}

std::string FetchedPath(const std::string& path, const std::string& hub_token) {
  const std::optional<ObjectUrl> url = ParseObjectUrl(path);
  if (!url) return PulledPath(path, hub_token);
  return FetchObjectPath(*url, ObjectOptionsFromEnvironment(*url)).string();
}

}  // namespace tandem::engine
