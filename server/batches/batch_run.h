#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/mailbox.h"
#include "server/batches/batch_input.h"
#include "server/batches/batch_results.h"
#include "server/batches/batch_slots.h"
#include "server/batches/batch_store.h"
#include "server/files/file_store.h"
#include "server/http/detached_requests.h"
#include "server/http/router.h"

namespace tandem::server {

// What running batches share. Outlives them.
struct BatchEnvironment {
  BatchStore& store;
  FileStore& files;
  BatchSlots& slots;
  const Router& router;
  DetachedRequests& detached;
  DetachedRequests::Failure failure;  // the answer to an exception of a handler
  // Gives the request the rights of the key that made the batch. False if that key is no longer
  // valid.
  std::function<bool(const Batch& batch, Request& request)> authorize;
  std::function<void(const Request& request)> on_line;  // counts a line as a request of its key
  std::mutex& large_lines;                              // held while a large line is parsed
  std::filesystem::path dir;                            // of the results of running batches
  int64_t max_line_bytes = 0;
  std::function<int64_t()> now;  // seconds since 1970
  const std::atomic<bool>& is_stopping;
};

// The answer to a line, from 0. Without one, only wakes the batch.
struct BatchNews {
  int64_t line = -1;
  std::optional<Response> answer = {};
};
using BatchMailbox = Mailbox<BatchNews>;

// Waits half a second. Throws kCancelled once the server stops.
void PauseBatch(const BatchEnvironment& environment);

// Repeats `action` while the disk or the database refuses it, until it works. A full disk and a
// database that is away pause a batch: nothing is lost. Throws kCancelled once the server stops;
// other errors pass.
void UntilDiskWorks(const BatchEnvironment& environment, const std::string& batch_id,
                    const std::function<void()>& action);

// Checks the input of a batch in the state validating. Its state is then in_progress or failed.
Batch ValidateBatch(const BatchEnvironment& environment, const Batch& batch);

// Runs one validated batch to its end on the calling thread, also after a restart. Throws
// kCancelled if the server stops before, and kUnavailable (kBatchLostReason) if another replica
// takes the batch over; the results so far are on disk then.
class BatchRun {
 public:
  BatchRun(const BatchEnvironment& environment, Batch batch, std::shared_ptr<BatchMailbox> mailbox);
  ~BatchRun();
  BatchRun(const BatchRun&) = delete;
  BatchRun& operator=(const BatchRun&) = delete;

  void Run();

 private:
  struct InFlight {
    std::string custom_id;
    std::string request_id;
    std::shared_ptr<ResponseChannel> channel;  // null until the handler is called
  };

  void ThrowIfStopping() const;
  // The status to end the batch with now; nullopt: it goes on.
  std::optional<BatchStatus> ReasonToEnd();
  void Decide(BatchStatus outcome);
  void RunLines();
  void StartLines();
  void StartLine(int64_t line);
  void Call(const Route& route, Request request, int64_t line);
  void TakeAnswer(int64_t line, const Response& answer);
  // Answers lines whose answer was given up, for lack of memory.
  void TakeGivenUp();
  void KeepResult(BatchResults::Result result);
  void Stop(int64_t line);
  void WaitForNews();

  // Writes the result files and the terminal status.
  void Finish();
  std::optional<std::string> WriteFile(const std::string& id, const char* suffix, bool of_errors);
  // The line of the error file for a line without a result.
  std::string UndoneLine(int64_t line) const;

  const BatchEnvironment& environment_;
  Batch batch_;
  const std::shared_ptr<BatchMailbox> mailbox_;
  const BatchInput input_;
  const std::vector<LineSpan> lines_;
  BatchResults results_;
  std::map<int64_t, InFlight> in_flight_;  // by line, from 0
  std::deque<int64_t> retries_;
  int64_t next_line_ = 0;
  bool is_starved_ = false;                             // lines wait for a slot
  std::chrono::steady_clock::time_point not_before_{};  // of the next start of a line
};

}  // namespace tandem::server
