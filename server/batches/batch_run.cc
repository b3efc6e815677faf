#include "server/batches/batch_run.h"

#include <algorithm>
#include <charconv>
#include <thread>
#include <utility>

#include "engine/base/attempt.h"
#include "engine/base/disk_full.h"
#include "engine/base/log.h"
#include "engine/base/out_of_memory.h"
#include "server/batches/batch_answer.h"
#include "server/blobs/blob_store.h"
#include "server/database/database_unavailable.h"
#include "server/http/standard_headers.h"

namespace tandem::server {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

// How often a running batch looks at the clock and at its key.
constexpr milliseconds kLook{1000};
// How often a batch asks for a slot while others hold them all.
constexpr milliseconds kLookForSlot{50};
constexpr milliseconds kDiskPause{500};
constexpr milliseconds kLongestPause{30'000};
// Only one line above this is parsed at a time: its JSON takes many times its bytes.
constexpr int64_t kLargeLineBytes = 1 << 20;

bool IsDiskFault(const Error& error) {
  return error.code() == ErrorCode::kIo || error.reason() == kDiskFullReason ||
         error.reason() == kDatabaseUnavailableReason ||
         error.reason() == kBlobStoreUnavailableReason;
}

// The time that a refusal asks to wait.
milliseconds PauseOf(const Response& response) {
  for (const auto& [name, value] : response.headers) {
    if (name != "retry-after-ms") continue;
    int64_t ms = 0;
    std::from_chars(value.data(), value.data() + value.size(), ms);
    return std::clamp(milliseconds(ms), milliseconds(100), kLongestPause);
  }
  return milliseconds(1000);
}

BatchError RevokedKey() {
  return {.code = "invalid_api_key",
          .message = "the API key that created the batch was revoked or has expired"};
}

// The input file on this machine.
LocalBlob InputOf(const BatchEnvironment& environment, const Batch& batch) {
  LocalBlob bytes;
  UntilDiskWorks(environment, batch.id,
                 [&] { bytes = environment.files.Local(batch.input_file_id); });
  return bytes;
}

}  // namespace

void PauseBatch(const BatchEnvironment& environment) {
  for (milliseconds waited{0}; waited < kDiskPause; waited += milliseconds(50)) {
    if (environment.is_stopping) throw Error(ErrorCode::kCancelled, "the server is stopping");
    std::this_thread::sleep_for(milliseconds(50));
  }
}

void UntilDiskWorks(const BatchEnvironment& environment, const std::string& batch_id,
                    const std::function<void()>& action) {
  for (bool is_logged = false;; is_logged = true) {
    std::optional<Error> error = ErrorOf(action);
    if (!error) return;
    if (!IsDiskFault(*error)) throw Error(*error);
    if (!is_logged) {
      LogEvent(spdlog::level::warn, "batch_paused",
               {{"batch", batch_id}, {"reason", std::string(error->what())}});
    }
    PauseBatch(environment);
  }
}

Batch ValidateBatch(const BatchEnvironment& environment, const Batch& batch) {
  CheckedInput checked;
  const auto error = ErrorOtherThan({ErrorCode::kCancelled}, [&] {
    const LocalBlob bytes = InputOf(environment, batch);
    const BatchInput input(bytes.path, environment.max_line_bytes);
    checked =
        CheckBatchInput(input, batch.endpoint, [&]() -> bool { return environment.is_stopping; });
  });
  if (error) {
    LogEvent(spdlog::level::err, "batch_input_unreadable",
             {{"batch", batch.id}, {"reason", std::string(error->what())}});
    checked.errors = {{.code = "invalid_input_file",
                       .message = "the server could not read the input file; its log says why"}};
  }
  Batch changed;
  UntilDiskWorks(environment, batch.id, [&] {
    changed = environment.store.UpdateOurs(batch, [&](Batch& now) {
      if (now.outcome) return;  // cancelled meanwhile
      now.counts.total = static_cast<int64_t>(checked.lines.size());
      now.model = checked.model;
      if (checked.errors.empty()) {
        now.status = BatchStatus::kInProgress;
        now.times.in_progress = environment.now();
        return;
      }
      now.counts.total = 0;
      now.errors = checked.errors;
      now.status = BatchStatus::kFailed;
      now.times.failed = environment.now();
    });
  });
  LogEvent(spdlog::level::info, "batch_validated",
           {{"batch", batch.id},
            {"lines", changed.counts.total},
            {"errors", static_cast<int64_t>(changed.errors.size())}});
  return changed;
}

BatchRun::BatchRun(const BatchEnvironment& environment, Batch batch,
                   std::shared_ptr<BatchMailbox> mailbox)
    : environment_(environment),
      batch_(std::move(batch)),
      mailbox_(std::move(mailbox)),
      // The open file stays readable after its removal from the cache.
      input_(InputOf(environment, batch_).path, environment.max_line_bytes),
      // A batch that is cancelled before its input is checked has no lines.
      lines_(batch_.times.in_progress ? LinesOf(input_) : std::vector<LineSpan>()),
      results_(environment.dir / (batch_.id + ".results"), static_cast<int64_t>(lines_.size()),
               environment.store.is_shared()
                   ? BatchResults::Check([this] { environment_.store.FindOurs(batch_); })
                   : nullptr) {
  environment_.slots.Join();
  environment_.store.SetProgress(batch_.id, results_.counts(), results_.usage());
}

BatchRun::~BatchRun() {
  while (!in_flight_.empty()) Stop(in_flight_.begin()->first);
  environment_.slots.Leave();
}

void BatchRun::ThrowIfStopping() const {
  if (environment_.is_stopping) throw Error(ErrorCode::kCancelled, "the server is stopping");
}

void BatchRun::Run() {
  while (!batch_.outcome) {
    ThrowIfStopping();
    if (const std::optional<BatchStatus> reason = ReasonToEnd()) {
      Decide(*reason);
    } else {
      RunLines();
    }
  }
  // Lines that still run have no result; the answers of cancelled ones are not wanted.
  while (!in_flight_.empty()) Stop(in_flight_.begin()->first);
  Finish();
}

std::optional<BatchStatus> BatchRun::ReasonToEnd() {
  // Each round begins here, so a batch that was lost stops before it keeps another result.
  Batch now;
  UntilDiskWorks(environment_, batch_.id, [&] { now = environment_.store.FindOurs(batch_); });
  if (now.outcome) return now.outcome;
  if (results_.counts().completed + results_.counts().failed == results_.n_lines()) {
    return BatchStatus::kCompleted;
  }
  if (environment_.now() >= batch_.times.expires) return BatchStatus::kExpired;
  Request probe;
  if (!environment_.authorize(batch_, probe)) return BatchStatus::kFailed;
  return std::nullopt;
}

// The first decision stays: a cancellation may come in between.
void BatchRun::Decide(BatchStatus outcome) {
  UntilDiskWorks(environment_, batch_.id, [&] {
    batch_ = environment_.store.UpdateOurs(batch_, [&](Batch& now) {
      if (now.outcome) return;
      now.outcome = outcome;
      now.status = BatchStatus::kFinalizing;
      now.times.finalizing = environment_.now();
      if (outcome == BatchStatus::kFailed) now.errors = {RevokedKey()};
    });
  });
}

// One round: starts lines, waits for news, keeps results.
void BatchRun::RunLines() {
  StartLines();
  WaitForNews();
  const int64_t before = results_.counts().completed + results_.counts().failed;
  for (const BatchNews& news : mailbox_->TakeAll()) {
    if (news.answer && in_flight_.contains(news.line)) TakeAnswer(news.line, *news.answer);
  }
  TakeGivenUp();
  if (results_.counts().completed + results_.counts().failed == before) return;
  UntilDiskWorks(environment_, batch_.id, [&] { results_.Sync(); });
  environment_.store.SetProgress(batch_.id, results_.counts(), results_.usage());
}

void BatchRun::StartLines() {
  is_starved_ = false;
  while (steady_clock::now() >= not_before_ && !environment_.is_stopping) {
    while (next_line_ < results_.n_lines() && results_.Has(next_line_)) ++next_line_;
    if (retries_.empty() && next_line_ == results_.n_lines()) return;
    if (!environment_.slots.TryTake(static_cast<int64_t>(in_flight_.size()))) {
      is_starved_ = true;
      return;
    }
    int64_t line = next_line_;
    if (retries_.empty()) {
      ++next_line_;
    } else {
      line = retries_.front();
      retries_.pop_front();
    }
    StartLine(line);
    if (!retries_.empty() && retries_.back() == line) return;  // the key is refused
  }
}

// The caller has taken a slot.
void BatchRun::StartLine(int64_t line) {
  InFlight& started = in_flight_[line];
  const LineSpan& span = lines_[static_cast<size_t>(line)];
  std::unique_lock large(environment_.large_lines, std::defer_lock);
  if (span.bytes > kLargeLineBytes) large.lock();
  BatchLine parsed = ParseBatchLine(input_.Read(span), batch_.endpoint);
  started.custom_id = std::move(parsed.custom_id);
  Request request;
  request.id = NewRequestId();
  request.method = "POST";
  request.path = batch_.endpoint;
  request.headers = {{"content-type", "application/json"}};
  request.body = std::move(parsed.body);
  request.remote = "batch";
  request.received = steady_clock::now();
  request.is_batch_line = true;
  if (!environment_.authorize(batch_, request)) {
    retries_.push_back(line);  // ReasonToEnd ends the batch, unless the key has come back
    return Stop(line);
  }
  const Router::Match match = environment_.router.Find("POST", batch_.endpoint);
  if (match.route == nullptr) {
    // An older program resumes the batch of a newer one.
    return KeepResult({.line = line,
                       .is_error = true,
                       .usage = {},
                       .json = ErrorLine(started.custom_id, "unknown_url",
                                         "this server has no " + batch_.endpoint)});
  }
  environment_.on_line(request);
  Call(*match.route, std::move(request), line);
}

void BatchRun::Call(const Route& route, Request request, int64_t line) {
  const std::string request_id = request.id;
  const DetachedRequests::Detached detached =
      environment_.detached.Open(request_id, [mailbox = mailbox_, line](Response answer) {
        mailbox->Post({line, std::move(answer)});
      });
  InFlight& started = in_flight_.at(line);
  started.request_id = request_id;
  started.channel = detached.channel;
  const auto error = Attempt([&] { route.handler(std::move(request), detached.writer); });
  if (!error) return;
  const bool is_answered =
      HasMemoryFor([&] { detached.writer.Send(environment_.failure(*error, request_id)); });
  if (!is_answered) detached.writer.GiveUp();
}

void BatchRun::TakeAnswer(int64_t line, const Response& answer) {
  const InFlight& of = in_flight_.at(line);
  if (IsTemporaryRefusal(answer)) {
    not_before_ = steady_clock::now() + PauseOf(answer);
    Stop(line);
    retries_.push_back(line);
    return;
  }
  KeepResult({.line = line,
              .is_error = answer.status < 200 || answer.status >= 300,
              .usage = UsageOf(answer.body),
              .json = AnswerLine(of.custom_id, of.request_id, answer)});
}

void BatchRun::TakeGivenUp() {
  std::vector<int64_t> lines;
  for (const auto& [line, of] : in_flight_) {
    if (of.channel && of.channel->disconnected()) lines.push_back(line);
  }
  for (const int64_t line : lines) {
    const Error error(ErrorCode::kUnavailable, "the server was out of memory");
    TakeAnswer(line, environment_.failure(error, in_flight_.at(line).request_id));
  }
}

void BatchRun::KeepResult(BatchResults::Result result) {
  UntilDiskWorks(environment_, batch_.id, [&] { results_.Append(result); });
  Stop(result.line);
}

// Cancels what still runs of the line.
void BatchRun::Stop(int64_t line) {
  const auto of = in_flight_.extract(line);
  if (of.mapped().channel) of.mapped().channel->Disconnect();
  environment_.slots.Release();
}

void BatchRun::WaitForNews() {
  milliseconds timeout = is_starved_ ? kLookForSlot : kLook;
  const auto until_start = std::chrono::ceil<milliseconds>(not_before_ - steady_clock::now());
  if (until_start.count() > 0) timeout = std::min(timeout, until_start);
  mailbox_->WaitFor(timeout);
}

void BatchRun::Finish() {
  const bool has_files = !batch_.planned_output_id.empty();
  if (!has_files) {
    UntilDiskWorks(environment_, batch_.id, [&] {
      batch_ = environment_.store.UpdateOurs(batch_, [](Batch& now) {
        now.planned_output_id = FileStore::NewId();
        now.planned_error_id = FileStore::NewId();
      });
    });
  }
  std::optional<std::string> output;
  std::optional<std::string> errors;
  UntilDiskWorks(environment_, batch_.id, [&] {
    output = WriteFile(batch_.planned_output_id, "_output.jsonl", false);
    errors = WriteFile(batch_.planned_error_id, "_error.jsonl", true);
  });
  UntilDiskWorks(environment_, batch_.id, [&] {
    batch_ = environment_.store.UpdateOurs(batch_, [&](Batch& now) {
      now.output_file_id = output;
      now.error_file_id = errors;
      now.counts = results_.counts();
      now.counts.failed = now.counts.total - now.counts.completed;
      now.usage = results_.usage();
      now.status = *now.outcome;
      const int64_t time = environment_.now();
      if (now.status == BatchStatus::kCompleted) now.times.completed = time;
      if (now.status == BatchStatus::kExpired) now.times.expired = time;
      if (now.status == BatchStatus::kCancelled) now.times.cancelled = time;
      if (now.status == BatchStatus::kFailed) now.times.failed = time;
    });
  });
  LogEvent(spdlog::level::info, "batch_ended",
           {{"batch", batch_.id},
            {"completed", batch_.counts.completed},
            {"failed", batch_.counts.failed}});
  std::error_code ignored;
  std::filesystem::remove(environment_.dir / (batch_.id + ".results"), ignored);
}

// Returns nullopt if no line belongs to the file. A file that an interrupted Finish has made stays.
std::optional<std::string> BatchRun::WriteFile(const std::string& id, const char* suffix,
                                               bool of_errors) {
  const int64_t n =
      of_errors ? results_.n_lines() - results_.counts().completed : results_.counts().completed;
  if (n == 0) return std::nullopt;
  if (environment_.files.Find(id)) return id;
  TemporaryFile file = environment_.files.BeginFile();
  for (int64_t line = 0; line < results_.n_lines(); ++line) {
    ThrowIfStopping();
    if (results_.Has(line) && results_.IsError(line) == of_errors) {
      file.Write(results_.Read(line) + "\n");
    } else if (!results_.Has(line) && of_errors) {
      file.Write(UndoneLine(line) + "\n");
    }
  }
  // If another replica has the batch by now, the file of this id may be its own.
  environment_.store.FindOurs(batch_);
  environment_.files.Add(std::move(file), {.filename = batch_.id + suffix,
                                           .purpose = "batch_output",
                                           .expires_after_s = batch_.output_expires_after_s,
                                           .id = id,
                                           .owner = batch_.owner});
  return id;
}

std::string BatchRun::UndoneLine(int64_t line) const {
  const std::string custom_id =
      ParseBatchLine(input_.Read(lines_[static_cast<size_t>(line)]), batch_.endpoint).custom_id;
  switch (*batch_.outcome) {
    case BatchStatus::kExpired:
      return ErrorLine(custom_id, "batch_expired",
                       "this request could not be executed before the completion window expired");
    case BatchStatus::kCancelled:
      return ErrorLine(custom_id, "batch_cancelled",
                       "the batch was cancelled before this request was executed");
    default:
      return ErrorLine(custom_id, RevokedKey().code, RevokedKey().message);
  }
}

}  // namespace tandem::server
