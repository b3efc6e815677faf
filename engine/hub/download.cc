#include "engine/hub/download.h"

#include <algorithm>
#include <charconv>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>

#include "engine/base/attempt.h"
#include "engine/base/check.h"
#include "engine/base/log.h"
#include "engine/base/thread_group.h"
#include "engine/base/thread_name.h"

// How several connections fetch a file without leaving gaps: the file is cut into segments, which
// are handed out in order. The segment at the end of the file on disk is appended as it arrives;
// later ones wait in memory for their turn. So the size alone tells any program that shares the
// cache where to resume, and the file is hashed while it is written. Waiting segments cost memory,
// bounded by the number of segments handed out, and are lost when the program ends.

namespace tandem::engine {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kReadBytes = size_t{256} << 10;
// Fewer bytes between two faults do not count as progress.
constexpr uint64_t kMinProgressBytes = uint64_t{64} << 10;
constexpr std::chrono::milliseconds kLockPoll{200};

void RunWorkers(HttpShared& shared, size_t n_workers,
                const std::function<void(HttpClient& client)>& work) {
  ThreadGroup group([&] { shared.RequestStop(); });
  const auto run = [&] {
    NameThisThread("tandem-hub");
    HttpClient client(shared);
    work(client);
  };
  StartWorkers(n_workers, [&] { group.Add(run); });
  group.Wait();
}

struct ContentRange {
  uint64_t first = 0;
  uint64_t last = 0;
  std::optional<uint64_t> total;
};

bool TakeNumber(std::string_view& text, uint64_t& value) {
  const auto [end, fault] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (fault != std::errc()) return false;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return true;
}

// Parses "bytes 0-99/1000".
std::optional<ContentRange> ParseContentRange(std::string_view text) {
  constexpr std::string_view kUnit = "bytes ";
  if (!text.starts_with(kUnit)) return std::nullopt;
  text.remove_prefix(kUnit.size());
  ContentRange range;
  if (!TakeNumber(text, range.first) || !text.starts_with('-')) return std::nullopt;
  text.remove_prefix(1);
  if (!TakeNumber(text, range.last) || !text.starts_with('/')) return std::nullopt;
  text.remove_prefix(1);
  if (text == "*") return range;
  uint64_t total = 0;
  if (!TakeNumber(text, total) || !text.empty()) return std::nullopt;
  range.total = total;
  return range;
}

// Whether the ETag is a strong validator, which If-Range requires.
bool IsStrongEtag(std::string_view etag) {
  return etag.size() >= 2 && etag.size() <= 256 && etag.front() == '"' && etag.back() == '"' &&
         std::all_of(etag.begin(), etag.end(), [](char c) { return c > 0x20 && c < 0x7f; });
}

void CheckLength(const HttpClient::Answer& answer, uint64_t expected) {
  const std::string_view length = answer.head.Find("content-length");
  if (length.empty() || length == std::to_string(expected)) return;
  throw Error(ErrorCode::kDataLoss,
              answer.url.Display() + ": expected " + std::to_string(expected) +
                  " bytes, but Content-Length is " + EscapeJson(length.substr(0, 30)));
}

class Downloads {
 public:
  Downloads(HttpShared& shared, const HubCache& cache, const HubReference& reference,
            const std::string& commit, std::vector<BlobToFetch> blobs, PullCounters& counters);

  void Run();

 private:
  enum class State {
    kPending,   // not opened yet
    kOpening,   // locking, and hashing the bytes on disk
    kProbing,   // the first response tells whether the server supports ranges
    kRanged,    // segments may be handed out
    kWhole,     // one worker takes the whole file
    kComplete,  // all bytes are on disk, not yet verified
    kDone,
  };

  struct File {
    BlobToFetch blob;
    State state = State::kPending;
    Clock::time_point not_before;  // kPending: retry time while another process holds the lock
    std::optional<FileDescriptor> lock;
    std::unique_ptr<PartialBlob> partial;
    uint64_t next_begin = 0;                // start of the next segment
    std::map<uint64_t, uint64_t> segments;  // handed out and not completely on disk: begin -> end
    std::map<uint64_t, std::vector<char>> early;  // begin -> bytes that wait for their turn
    std::string etag;                             // from the server that sends the bytes
    int n_relocations = 0;     // an ETag from before a relocation is of another server
    bool was_doubted = false;  // got a whole-file response without its length
  };

  struct Task {
    enum class Kind { kNothing, kOpen, kSegment, kFinish } kind = Kind::kNothing;
    File* file = nullptr;
    uint64_t begin = 0;
    uint64_t end = 0;
  };

  // A segment being fetched.
  struct Transfer {
    File& file;
    uint64_t begin = 0;
    uint64_t end = 0;
    uint64_t at = 0;  // the next byte
    bool was_relocated = false;
  };

  // A request for the rest of a segment.
  struct Question {
    HttpClient::Request request;
    bool is_elsewhere = false;  // not sent to the hub
    bool is_part = false;       // a range of the file
    int n_relocations = 0;      // File::n_relocations when the request was made
  };

  void Work(HttpClient& client);
  // Waits for a task. Returns kNothing when all files are done.
  Task Next();
  std::optional<Task> TryNext();
  void Open(File& file);
  void Fetch(HttpClient& client, Transfer transfer);
  // Sends one request and advances `at`. Throws TransientFault when bytes are still missing.
  void FetchOnce(HttpClient& client, Transfer& transfer);
  Question QuestionFor(const Transfer& transfer);
  // Check the head of a response. Return the offset at which its body ends.
  uint64_t AcceptPart(const Transfer& transfer, const Question& question,
                      const HttpClient::Answer& answer);
  uint64_t AcceptWhole(Transfer& transfer, const Question& question,
                       const HttpClient::Answer& answer);
  void Receive(HttpClient& client, Transfer& transfer, uint64_t end, const Url& url);
  void Relocate(HttpClient& client, File& file);
  void Deliver(const Transfer& transfer, std::span<const char> bytes);
  // Removes the segments that are completely on disk.
  void Retire(File& file);
  void RestartWhole(File& file);
  void Finish(File& file);
  void MarkDone(File& file);

  HttpShared& shared_;
  const HubCache& cache_;
  const HubReference& reference_;
  const std::string commit_;
  PullCounters& counters_;
  const size_t n_workers_;

  std::mutex mutex_;  // guards n_segments_ and files_, except fields owned by the worker that a
                      // state names
  std::condition_variable changed_;
  std::vector<std::unique_ptr<File>> files_;
  size_t n_segments_ = 0;  // handed out and not completely on disk
};

Downloads::Downloads(HttpShared& shared, const HubCache& cache, const HubReference& reference,
                     const std::string& commit, std::vector<BlobToFetch> blobs,
                     PullCounters& counters)
    : shared_(shared),
      cache_(cache),
      reference_(reference),
      commit_(commit),
      counters_(counters),
      n_workers_(static_cast<size_t>(std::max(1, shared.options.connections))) {
  for (BlobToFetch& blob : blobs) {
    files_.push_back(std::make_unique<File>());
    files_.back()->blob = std::move(blob);
  }
}

void Downloads::Run() {
  if (files_.empty()) return;
  RunWorkers(shared_, n_workers_, [this](HttpClient& client) { Work(client); });
}

void Downloads::Work(HttpClient& client) {
  for (;;) {
    const Task task = Next();
    switch (task.kind) {
      case Task::Kind::kNothing:
        return;
      case Task::Kind::kOpen:
        Open(*task.file);
        break;
      case Task::Kind::kSegment:
        Fetch(client, Transfer{*task.file, task.begin, task.end, task.begin});
        break;
      case Task::Kind::kFinish:
        Finish(*task.file);
        break;
    }
    changed_.notify_all();
  }
}

Downloads::Task Downloads::Next() {
  std::unique_lock lock(mutex_);
  for (;;) {
    shared_.stop.ThrowIfStopped();
    const bool all_done = std::all_of(files_.begin(), files_.end(),
                                      [](const auto& file) { return file->state == State::kDone; });
    if (all_done) return {};
    if (const std::optional<Task> task = TryNext()) return *task;
    // A timeout, because stops and other processes' locks do not notify.
    changed_.wait_for(lock, kLockPoll);
  }
}

std::optional<Downloads::Task> Downloads::TryNext() {
  const size_t max_segments = 2 * n_workers_;
  for (const std::unique_ptr<File>& owned : files_) {
    File& file = *owned;
    switch (file.state) {
      case State::kPending:
        if (n_segments_ >= max_segments || Clock::now() < file.not_before) break;
        file.state = State::kOpening;
        return Task{Task::Kind::kOpen, &file, 0, 0};
      case State::kComplete:
        file.state = State::kOpening;  // only this worker touches it
        return Task{Task::Kind::kFinish, &file, 0, 0};
      case State::kProbing:
        if (!file.segments.empty()) break;
        [[fallthrough]];
      case State::kRanged: {
        const uint64_t size = file.blob.location.identity.size;
        if (file.next_begin >= size) break;
        // The segment at the end of the file may always go: the others wait for it.
        if (n_segments_ >= max_segments && !file.segments.empty()) break;
        const uint64_t begin = file.next_begin;
        const uint64_t end = begin + std::min(shared_.options.segment_bytes, size - begin);
        file.next_begin = end;
        file.segments.emplace(begin, end);
        ++n_segments_;
        return Task{Task::Kind::kSegment, &file, begin, end};
      }
      default:
        break;
    }
  }
  return std::nullopt;
}

void Downloads::Open(File& file) {
  const BlobIdentity& identity = file.blob.location.identity;
  std::optional<FileDescriptor> held = cache_.TryLockBlob(identity.name);
  if (!held) {
    const std::lock_guard lock(mutex_);
    if (file.not_before == Clock::time_point()) {
      spdlog::info("hub_wait file=\"{}\" reason=\"another process downloads this file\"",
                   EscapeJson(file.blob.file.name));
    }
    file.not_before = Clock::now() + kLockPoll;
    file.state = State::kPending;
    return;
  }
  if (cache_.BlobSize(identity.name) == identity.size) {  // by the lock's last holder
    counters_.bytes_done += identity.size;
    file.lock = std::move(held);
    MarkDone(file);
    return;
  }
  auto partial = std::make_unique<PartialBlob>(cache_.IncompletePath(identity.name), identity,
                                               [this](size_t n_bytes) {
                                                 shared_.stop.ThrowIfStopped();
                                                 counters_.bytes_done += n_bytes;
                                               });
  if (partial->was_resumed()) {
    spdlog::info("hub_resume file=\"{}\" bytes={} of={}", EscapeJson(file.blob.file.name),
                 partial->size(), identity.size);
  }
  const std::lock_guard lock(mutex_);
  file.lock = std::move(held);
  file.partial = std::move(partial);
  file.next_begin = file.partial->size();
  file.state = file.next_begin == identity.size ? State::kComplete : State::kProbing;
}

void Downloads::Fetch(HttpClient& client, Transfer transfer) {
  Backoff backoff(shared_);
  uint64_t at_last_fault = transfer.at;
  while (transfer.at < transfer.end) {
    const auto fault = ExceptionOf<TransientFault>([&] { FetchOnce(client, transfer); });
    if (!fault) continue;
    if (transfer.at >= at_last_fault + kMinProgressBytes) backoff.Progressed();
    at_last_fault = std::max(transfer.at, at_last_fault);
    const std::string& name = transfer.file.blob.file.name;
    backoff.Wait(fault->WithMessage(EscapeJson(name) + ": " + fault->what()));
  }
}

void Downloads::FetchOnce(HttpClient& client, Transfer& transfer) {
  const Question question = QuestionFor(transfer);
  const HttpClient::Answer answer = client.SendFollowing(question.request);
  const int status = answer.head.status;

  const bool may_be_expired = status == 401 || status == 403 || status == 404 || status == 410;
  if (question.is_elsewhere && may_be_expired && !transfer.was_relocated) {
    transfer.was_relocated = true;
    Relocate(client, transfer.file);
    return;
  }
  if (status >= 400) {
    if (question.is_elsewhere) ThrowHttpStatus(answer.head, answer.url, shared_.options);
    ThrowHubStatus(answer.head, answer.url, reference_, shared_.options);
  }
  uint64_t end = 0;
  if (status == 206 && question.is_part) {
    end = AcceptPart(transfer, question, answer);
  } else if (status == 200) {
    end = AcceptWhole(transfer, question, answer);
  } else {
    throw Error(ErrorCode::kDataLoss,
                answer.url.Display() + ": unexpected status " + std::to_string(status));
  }
  Receive(client, transfer, end, answer.url);
}

Downloads::Question Downloads::QuestionFor(const Transfer& transfer) {
  const File& file = transfer.file;
  Question question;
  const std::lock_guard lock(mutex_);
  const FileLocation& location = file.blob.location;
  question.request.url = location.url;
  question.request.may_carry_token = !location.is_elsewhere;
  question.is_elsewhere = location.is_elsewhere;
  question.is_part = transfer.at > 0 || transfer.end < location.identity.size;
  question.n_relocations = file.n_relocations;
  if (!question.is_part) return question;
  auto& fields = question.request.fields;
  fields.emplace_back(
      "Range", "bytes=" + std::to_string(transfer.at) + "-" + std::to_string(transfer.end - 1));
  // If-Range is sent only without a hash. With a hash, replicas of one file may use different
  // ETags, and the hash decides.
  if (location.identity.hash == BlobIdentity::Hash::kNone && !file.etag.empty()) {
    fields.emplace_back("If-Range", file.etag);
  }
  return question;
}

uint64_t Downloads::AcceptPart(const Transfer& transfer, const Question& question,
                               const HttpClient::Answer& answer) {
  File& file = transfer.file;
  const uint64_t size = file.blob.location.identity.size;
  const std::string_view field = answer.head.Find("content-range");
  const auto range = ParseContentRange(field);
  if (!range || range->first != transfer.at || range->last < transfer.at ||
      range->last >= transfer.end || (range->total && *range->total != size)) {
    throw Error(ErrorCode::kDataLoss,
                answer.url.Display() + ": requested bytes " + std::to_string(transfer.at) + "-" +
                    std::to_string(transfer.end - 1) + " of " + std::to_string(size) +
                    ", but the response has Content-Range '" + EscapeJson(field.substr(0, 80)) +
                    "'");
  }
  CheckLength(answer, range->last + 1 - transfer.at);

  const std::lock_guard lock(mutex_);
  if (file.state == State::kProbing) file.state = State::kRanged;
  const std::string_view etag = answer.head.Find("etag");
  if (file.etag.empty() && IsStrongEtag(etag) && question.n_relocations == file.n_relocations) {
    file.etag = etag;
  }
  changed_.notify_all();
  return range->last + 1;
}

uint64_t Downloads::AcceptWhole(Transfer& transfer, const Question& question,
                                const HttpClient::Answer& answer) {
  File& file = transfer.file;
  const uint64_t size = file.blob.location.identity.size;
  const std::lock_guard lock(mutex_);
  // Other workers fetch ranges of this file, so its server supports them.
  if (question.is_part && file.state == State::kRanged) {
    throw TransientFault(ErrorCode::kUnavailable,
                         "the server sent the whole file instead of the requested range");
  }
  // Checks the response before discarding bytes on disk.
  CheckLength(answer, size);
  if (!question.is_part) return size;
  const bool is_measured = !answer.head.Find("content-length").empty();
  if (!is_measured && file.partial->size() > 0 && !file.was_doubted) {
    file.was_doubted = true;
    throw TransientFault(
        ErrorCode::kUnavailable,
        "the server sent the whole file instead of the requested range, without Content-Length");
  }
  RestartWhole(file);
  transfer.begin = transfer.at = 0;
  transfer.end = size;
  return size;
}

void Downloads::Receive(HttpClient& client, Transfer& transfer, uint64_t end, const Url& url) {
  std::vector<char> buffer(kReadBytes);
  while (const size_t n = client.ReadBody(buffer)) {
    if (n > end - transfer.at) {
      throw Error(ErrorCode::kDataLoss, url.Display() + ": the response goes beyond byte " +
                                            std::to_string(end) + ", where it must end");
    }
    Deliver(transfer, std::span(buffer).first(n));
    transfer.at += n;
  }
  if (transfer.at < end) {
    throw TransientFault(ErrorCode::kUnavailable, url.Display() + ": the response ended too early");
  }
}

void Downloads::Relocate(HttpClient& client, File& file) {
  const FileLocation location = LocateFile(client, reference_, commit_, file.blob.file);
  const std::lock_guard lock(mutex_);
  const BlobIdentity& expected = file.blob.location.identity;
  if (location.identity.name != expected.name || location.identity.size != expected.size) {
    throw Error(ErrorCode::kDataLoss,
                EscapeJson(file.blob.file.name) +
                    " changed on the hub during the download: run the same command again");
  }
  file.blob.location.url = location.url;
  file.blob.location.is_elsewhere = location.is_elsewhere;
  file.etag.clear();
  ++file.n_relocations;
}

void Downloads::Deliver(const Transfer& transfer, std::span<const char> bytes) {
  File& file = transfer.file;
  counters_.bytes_fetched += bytes.size();
  const std::lock_guard lock(mutex_);
  if (transfer.at != file.partial->size()) {
    std::vector<char>& waiting = file.early[transfer.begin];
    waiting.reserve(file.segments.at(transfer.begin) - transfer.begin);
    waiting.insert(waiting.end(), bytes.begin(), bytes.end());
    return;
  }
  file.partial->Append(bytes);
  counters_.bytes_done += bytes.size();
  // Append the waiting segments that now follow the end of the file.
  for (auto next = file.early.find(file.partial->size()); next != file.early.end();
       next = file.early.find(file.partial->size())) {
    file.partial->Append(next->second);
    counters_.bytes_done += next->second.size();
    file.early.erase(next);
  }
  Retire(file);
}

void Downloads::Retire(File& file) {
  const uint64_t size = file.partial->size();
  while (!file.segments.empty() && file.segments.begin()->second <= size) {
    file.segments.erase(file.segments.begin());
    --n_segments_;
  }
  if (size == file.blob.location.identity.size) file.state = State::kComplete;
  changed_.notify_all();
}

void Downloads::RestartWhole(File& file) {
  const uint64_t size = file.blob.location.identity.size;
  spdlog::info("hub_no_ranges file=\"{}\" bytes_again={}", EscapeJson(file.blob.file.name),
               file.partial->size());
  counters_.bytes_done -= file.partial->size();
  file.partial->Restart();
  file.early.clear();
  file.segments = {{0, size}};
  file.next_begin = size;
  file.state = State::kWhole;
}

void Downloads::Finish(File& file) {
  const BlobIdentity& identity = file.blob.location.identity;
  const bool was_resumed = file.partial->was_resumed();
  if (!file.partial->Verify()) {
    const std::string message =
        EscapeJson(file.blob.file.name) + ": the " +
        (identity.hash == BlobIdentity::Hash::kSha256 ? "sha256" : "git sha1") +
        " of the download is " + file.partial->found_hex() + ", but the hub lists " + identity.hex +
        ". The download is discarded; run the same command to fetch it again. If that fails too, a "
        "proxy or mirror (HF_ENDPOINT) changes the file";
    const std::lock_guard lock(mutex_);
    // Bytes of an earlier attempt may be wrong: restart once.
    if (!was_resumed) throw Error(ErrorCode::kDataLoss, message);
    spdlog::warn("hub_again reason=\"{}\"", message);
    counters_.bytes_done -= identity.size;
    file.next_begin = 0;
    file.state = State::kProbing;
    return;
  }
  if (identity.hash == BlobIdentity::Hash::kNone) {
    spdlog::warn("hub_unverified file=\"{}\" reason=\"the hub lists no hash\"",
                 EscapeJson(file.blob.file.name));
  }
  file.partial->Publish(cache_.BlobPath(identity.name));
  MarkDone(file);
}

void Downloads::MarkDone(File& file) {
  for (const std::string& name : file.blob.names) {
    cache_.LinkFile(commit_, name, file.blob.location.identity.name);
    ++counters_.files_done;
  }
  const std::lock_guard lock(mutex_);
  file.partial.reset();
  file.lock.reset();
  file.state = State::kDone;
}

}  // namespace

void StartWorkers(size_t n, const std::function<void()>& start) {
  size_t n_started = 0;
  const auto refused = ErrorOf({ErrorCode::kResourceExhausted}, [&] {
    for (; n_started < n; ++n_started) start();
  });
  if (!refused) return;
  if (n_started == 0) throw Error(*refused);
  spdlog::warn("hub_few_threads wanted={} got={} reason=\"{}\"", n, n_started, refused->what());
}

void ForEachInParallel(HttpShared& shared, size_t n,
                       const std::function<void(HttpClient& client, size_t i)>& work) {
  std::atomic<size_t> next{0};
  const size_t n_workers =
      std::min(n, static_cast<size_t>(std::max(1, shared.options.connections)));
  RunWorkers(shared, n_workers, [&](HttpClient& client) {
    for (size_t i = next++; i < n; i = next++) work(client, i);
  });
}

void FetchBlobs(HttpShared& shared, const HubCache& cache, const HubReference& reference,
                const std::string& commit, std::vector<BlobToFetch> blobs, PullCounters& counters) {
  Downloads(shared, cache, reference, commit, std::move(blobs), counters).Run();
}

}  // namespace tandem::engine
