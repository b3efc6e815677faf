#include "engine/hub/pull.h"

#include <signal.h>

#include <algorithm>
#include <future>
#include <map>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "engine/base/attempt.h"
#include "engine/base/error.h"
#include "engine/base/log.h"
#include "engine/base/progress.h"
#include "engine/base/thread_name.h"
#include "engine/hub/api.h"
#include "engine/hub/cache.h"
#include "engine/hub/download.h"
#include "engine/io/atomic_write.h"

namespace tandem::engine {
namespace {

namespace fs = std::filesystem;

constexpr std::chrono::milliseconds kReportInterval{200};
// Prevents overflow of sums of sizes; far above any disk.
constexpr uint64_t kMaxModelBytes = uint64_t{1} << 60;
constexpr size_t kMaxIndexBytes = size_t{64} << 20;
// Models have hundreds of files at most; each file costs a request.
constexpr size_t kMaxFiles = 4096;
// Limits the wait for the hub when the cache holds a usable snapshot.
constexpr int kAttemptsWithFallback = 2;
constexpr std::chrono::milliseconds kRetryAfterWithFallback{2000};

// The path of a GGUF model is its (first) file, otherwise the snapshot's directory.
fs::path ModelPath(const HubCache& cache, const HubReference& reference, const std::string& commit,
                   const FileSelection& selection) {
  const fs::path dir = cache.SnapshotDir(commit);
  return reference.gguf.empty() ? dir : dir / selection.weights.front();
}

std::vector<std::string> FilesBelow(const fs::path& dir) {
  std::vector<std::string> names;
  std::error_code failed;
  fs::recursive_directory_iterator entry(dir, failed);
  for (; !failed && entry != fs::recursive_directory_iterator(); entry.increment(failed)) {
    std::error_code absent;  // a link without its blob is not a file
    if (!fs::is_regular_file(entry->path(), absent)) continue;
    std::string name = entry->path().lexically_relative(dir).string();
    if (IsSafeFileName(name)) names.push_back(std::move(name));
  }
  std::sort(names.begin(), names.end());
  return names;
}

// Names a missing part of the snapshot; empty when it is complete.
std::string MissingFrom(const HubCache& cache, const HubReference& reference,
                        const std::string& commit, const FileSelection& selection) {
  if (!reference.gguf.empty()) {
    // "…-00001-of-00003.gguf" states the number of parts.
    const size_t n_parts = PartsOfGguf(selection.weights.front());
    const size_t n_there = selection.weights.size();
    if (n_there >= n_parts) return {};
    return std::to_string(n_parts - n_there) + " of " + std::to_string(n_parts) + " parts";
  }
  if (!cache.FileSize(commit, "config.json") && !cache.FileSize(commit, kAdapterFile)) {
    return "config.json";
  }
  const bool has_index = std::find(selection.texts.begin(), selection.texts.end(), kIndexFile) !=
                         selection.texts.end();
  if (!has_index) return {};
  const fs::path index = cache.SnapshotDir(commit) / kIndexFile;
  for (const std::string& shard :
       ShardsOfIndex(ReadWholeFile(index, kMaxIndexBytes), index.string())) {
    if (!cache.FileSize(commit, shard)) return shard;
  }
  return {};
}

// GGUF files contain their tokenizer, and adapters use their base model's.
bool LacksTokenizer(const HubReference& reference, const FileSelection& selection) {
  const std::vector<std::string>& texts = selection.texts;
  return reference.gguf.empty() && !HasTokenizer(texts) &&
         std::find(texts.begin(), texts.end(), kAdapterFile) == texts.end();
}

void WarnOfNoTokenizer(const HubReference& reference) {
  spdlog::warn("hub_no_tokenizer model={} reason=\"the repository has none of {}\"",
               reference.Text(), kTokenizerFiles);
}

struct Found {
  std::optional<fs::path> path;
  bool lacks_tokenizer = false;
  std::string missing;  // why `path` is empty
};

Found FindInCache(const HubReference& reference, const HubOptions& options) {
  const HubCache cache(options.cache_dir, reference.repo);
  const std::optional<std::string> commit = cache.FindCommit(reference.revision);
  if (!commit) {
    return {{}, false, "revision '" + reference.revision + "' has never been pulled"};
  }
  const std::vector<std::string> names = FilesBelow(cache.SnapshotDir(*commit));
  if (names.empty()) return {{}, false, "commit " + *commit + " has no files"};
  Found found;
  const auto unusable = ErrorOf([&] {
    const FileSelection selection = SelectFiles(reference, names);
    const std::string missing = MissingFrom(cache, reference, *commit, selection);
    if (missing.empty()) {
      found.path = ModelPath(cache, reference, *commit, selection);
      found.lacks_tokenizer = LacksTokenizer(reference, selection);
    } else {
      found.missing = missing + " of commit " + *commit + " is missing";
    }
  });
  if (unusable) return {{}, false, "commit " + *commit + ": " + unusable->what()};
  return found;
}

bool IsUnreachable(const Error& error) {
  return error.code() == ErrorCode::kUnavailable || error.code() == ErrorCode::kDeadlineExceeded;
}

// One pull, on a thread of its own so that the caller can report progress.
class Pull {
 public:
  // `fallback`: the model in the cache, if any.
  Pull(const HubReference& reference, const HubOptions& options, Found fallback,
       std::stop_token stop, PullCounters& counters)
      : reference_(reference),
        fallback_(std::move(fallback)),
        cache_(options.cache_dir, reference.repo),
        shared_(options, std::move(stop)),
        counters_(counters) {}

  fs::path Run() {
    if (!shared_.options.token.empty() && !shared_.endpoint.is_https) {
      spdlog::warn("hub_token_in_the_clear reason=\"HF_ENDPOINT is not https\"");
    }
    // Falls back only here: after the hub has described the current model, an older one is wrong.
    const auto can_fall_back = [&](const Error& error) {
      return fallback_.path && IsUnreachable(error);
    };
    const auto unreachable = ExceptionIf<Error>(can_fall_back, [&] {
      HttpClient client(shared_);
      info_ = FetchRepoInfo(client, reference_, PatienceForList());
    });
    if (unreachable) {
      spdlog::warn("hub_unreachable model={} using=\"{}\" reason=\"{}\"", reference_.Text(),
                   fallback_.path->string(), unreachable->what());
      if (fallback_.lacks_tokenizer) WarnOfNoTokenizer(reference_);
      return *fallback_.path;
    }
    std::vector<std::string> names;
    for (const RepoFile& file : info_.files) names.push_back(file.name);
    FileSelection selection = SelectFiles(reference_, names);

    // The index comes first: it lists the weights of the model.
    if (std::find(selection.texts.begin(), selection.texts.end(), kIndexFile) !=
        selection.texts.end()) {
      Fetch({kIndexFile});
      const fs::path index = cache_.SnapshotDir(info_.commit) / kIndexFile;
      selection.weights = ShardsOfIndex(ReadWholeFile(index, kMaxIndexBytes), index.string());
    }
    std::vector<std::string> all = selection.texts;
    all.insert(all.end(), selection.weights.begin(), selection.weights.end());
    Fetch(all);
    cache_.WriteRef(reference_.revision, info_.commit);
    if (LacksTokenizer(reference_, selection)) WarnOfNoTokenizer(reference_);
    return ModelPath(cache_, reference_, info_.commit, selection);
  }

 private:
  // With a fallback, an unreachable network should cost little time.
  Patience PatienceForList() const {
    Patience patience(shared_.options);
    if (!fallback_.path) return patience;
    patience.max_attempts = std::min(patience.max_attempts, kAttemptsWithFallback);
    patience.max_retry_after = std::min(patience.max_retry_after, kRetryAfterWithFallback);
    return patience;
  }

  void Fetch(const std::vector<std::string>& names) {
    if (names.size() > kMaxFiles) {
      throw Error(ErrorCode::kDataLoss, reference_.Text() + " has " + std::to_string(names.size()) +
                                            " files, more than the limit of " +
                                            std::to_string(kMaxFiles));
    }
    std::vector<RepoFile> wanted;
    for (const std::string& name : names) {
      const RepoFile* file = info_.Find(name);
      if (file == nullptr) {
        throw Error(ErrorCode::kDataLoss, std::string(kIndexFile) + " of " + reference_.repo +
                                              " names " + EscapeJson(name) +
                                              ", which the repository does not have");
      }
      const std::optional<uint64_t> size = cache_.FileSize(info_.commit, name);
      if (!size || (file->size && *size != *file->size)) wanted.push_back(*file);
    }

    std::vector<FileLocation> locations(wanted.size());
    ForEachInParallel(shared_, wanted.size(), [&](HttpClient& client, size_t i) {
      locations[i] = LocateFile(client, reference_, info_.commit, wanted[i]);
    });

    // Files with equal content share one blob.
    std::map<std::string, BlobToFetch> blobs;
    for (size_t i = 0; i < wanted.size(); ++i) {
      const BlobIdentity& identity = locations[i].identity;
      if (cache_.BlobSize(identity.name) == identity.size) {
        cache_.LinkFile(info_.commit, wanted[i].name, identity.name);
        continue;
      }
      BlobToFetch& blob = blobs[identity.name];
      if (blob.names.empty()) {
        blob.file = wanted[i];
        blob.location = locations[i];
      } else if (blob.location.identity.size != identity.size ||
                 blob.location.identity.hex != identity.hex) {
        throw Error(ErrorCode::kDataLoss, EscapeJson(wanted[i].name) + " and " +
                                              EscapeJson(blob.file.name) +
                                              " have the same ETag but different contents");
      }
      blob.names.push_back(wanted[i].name);
    }
    if (blobs.empty()) return;
    cache_.CreateFolders();  // only now: a complete cache may be read-only
    CheckSpace(blobs);

    std::vector<BlobToFetch> ordered;
    for (auto& [name, blob] : blobs) {
      counters_.bytes_total += blob.location.identity.size;
      counters_.files_total += static_cast<int>(blob.names.size());
      ordered.push_back(std::move(blob));
    }
    // Small files first: faults in a model's description show before its weights are fetched.
    std::sort(ordered.begin(), ordered.end(), [](const BlobToFetch& a, const BlobToFetch& b) {
      return std::pair(a.location.identity.size, a.file.name) <
             std::pair(b.location.identity.size, b.file.name);
    });
    FetchBlobs(shared_, cache_, reference_, info_.commit, std::move(ordered), counters_);
  }

  void CheckSpace(const std::map<std::string, BlobToFetch>& blobs) const {
    uint64_t total = 0;
    uint64_t present = 0;
    for (const auto& [name, blob] : blobs) {
      const uint64_t size = blob.location.identity.size;
      std::error_code absent;
      const uintmax_t partial = fs::file_size(cache_.IncompletePath(name), absent);
      total += size;
      if (total > kMaxModelBytes) {
        throw Error(ErrorCode::kDataLoss,
                    reference_.Text() + ": the hub lists files of more than " +
                        HumanBytes(kMaxModelBytes) + " in total, which is the limit");
      }
      if (!absent) present += std::min<uint64_t>(partial, size);
    }
    CheckFreeSpace(cache_.folder() / "blobs", total - present, total, reference_.Text());
  }

  const HubReference& reference_;
  const Found fallback_;
  const HubCache cache_;
  HttpShared shared_;
  PullCounters& counters_;
  RepoInfo info_;
};

// Blocks the signals for broken sockets and file size limits: the system calls report the same
// faults.
void BlockWriteSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGPIPE);
  sigaddset(&signals, SIGXFSZ);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
}

}  // namespace

fs::path FindPulledModel(const HubReference& reference, const HubOptions& options) {
  Found found = FindInCache(reference, options);
  if (found.path) {
    if (found.lacks_tokenizer) WarnOfNoTokenizer(reference);
    return *std::move(found.path);
  }
  throw Error(ErrorCode::kNotFound,
              reference.Text() + " is not complete in " + options.cache_dir.string() +
                  ", and HF_HUB_OFFLINE forbids downloads: " + found.missing +
                  "; unset HF_HUB_OFFLINE to pull the model, or give the path of a local model");
}

fs::path PullModel(const HubReference& reference, const HubOptions& options,
                   const PullReport& report, std::stop_token stop) {
  if (options.offline) return FindPulledModel(reference, options);
  Found found = FindInCache(reference, options);

  PullCounters counters;
  std::future<fs::path> result = std::async(std::launch::async, [&] {
    NameThisThread("tandem-hub");
    BlockWriteSignals();
    return Pull(reference, options, std::move(found), std::move(stop), counters).Run();
  });

  PullStatus status;
  status.name = reference.Text();
  std::optional<ProgressTask> task;
  bool is_ready = false;
  do {
    is_ready = result.wait_for(kReportInterval) == std::future_status::ready;
    status.bytes_total = counters.bytes_total;
    status.bytes_done = counters.bytes_done;
    status.files_total = counters.files_total;
    status.files_done = counters.files_done;
    status.is_done = is_ready;
    // Without files there is nothing to fetch, or the list is not known yet.
    if (!task && status.files_total > 0) {
      task.emplace("pulling " + status.name, "bytes", static_cast<int64_t>(status.bytes_total),
                   static_cast<int64_t>(status.bytes_done));
    }
    if (task) {
      task->SetTotal(static_cast<int64_t>(status.bytes_total));
      task->Reach(static_cast<int64_t>(status.bytes_done));
    }
    if (report) report(status);
  } while (!is_ready);

  fs::path path = result.get();
  task.reset();
  if (status.files_total > 0) {
    spdlog::info("hub_pull model={} bytes={} total_bytes={} files={} total_files={}", status.name,
                 status.bytes_done, status.bytes_total, status.files_done, status.files_total);
  }
  return path;
}

PullReport StoppingOnSignals(PullReport report, std::stop_source stop) {
  return [report = std::move(report), stop = std::move(stop)](const PullStatus& status) mutable {
    if (report) report(status);
    sigset_t pending;
    if (sigpending(&pending) == 0 &&
        (sigismember(&pending, SIGINT) == 1 || sigismember(&pending, SIGTERM) == 1)) {
      stop.request_stop();
    }
  };
}

std::string PulledPath(const std::string& path, const std::string& token) {
  std::error_code absent;
  if (path.empty() || fs::exists(path, absent)) return path;
  const std::optional<HubReference> reference = ParseHubReference(path);
  if (!reference) return path;
  const auto explain = [&](const Error& error) {
    const bool is_unreachable = IsUnreachable(error);
    return Error(error.code(),
                 "model '" + path + "' is not a local path, and " +
                     (is_unreachable ? "the hub is unreachable: " : "") + error.what() +
                     (is_unreachable ? "; check the network and HF_ENDPOINT, or give the path of a "
                                       "local model"
                                     : ""));
  };
  return WithContext(explain, [&] {
    std::stop_source stop;
    HubOptions options = HubOptionsFromEnvironment();
    if (!token.empty()) options.token = token;
    return PullModel(*reference, options, StoppingOnSignals(nullptr, stop), stop.get_token())
        .string();
  });
}

}  // namespace tandem::engine
