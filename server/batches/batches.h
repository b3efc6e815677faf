#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "engine/base/error.h"
#include "server/batches/batch.h"
#include "server/batches/batch_run.h"
#include "server/batches/batch_slots.h"
#include "server/batches/batch_store.h"
#include "server/http/request_pool.h"

namespace tandem::server {

// The batches of a server: checks and runs them on threads of its own, and resumes them after a
// restart. Any thread.
class Batches {
 public:
  struct Options {
    std::filesystem::path data_dir;     // must exist and be locked (JobStore)
    int64_t max_in_flight = 16;         // lines of all batches together
    int64_t max_line_bytes = 32 << 20;  // of the input
    // As in BatchEnvironment.
    std::function<bool(const Batch& batch, Request& request)> authorize;
    std::function<void(const Request& request)> on_line;
    DetachedRequests::Failure failure;
    std::function<int64_t()> now = {};  // seconds since 1970; empty: the system's clock
  };
  // All references must outlive it. Resumes unfinished batches. Throws kIo.
  Batches(Options options, BatchStore& store, FileStore& files, const Router& router,
          DetachedRequests& detached);
  ~Batches();
  Batches(const Batches&) = delete;
  Batches& operator=(const Batches&) = delete;

  // The batch is on disk at return. Throws kInvalidArgument for an endpoint that this server lacks,
  // kNotFound for the input file, and as BatchStore::Insert. A batch that is stored although Insert
  // threw runs after the next OnStoreChanged.
  Batch Create(const NewBatch& about, std::optional<int64_t> owner);
  std::optional<Batch> Find(const std::string& id) { return store_.Find(id); }
  BatchPage List(const std::string& after, size_t limit, const std::optional<int64_t>& viewer) {
    return store_.List(after, limit, viewer);
  }
  // Begins to cancel the batch; does nothing if it is being cancelled already. Throws
  // kFailedPrecondition (batch_not_active) if the batch has ended or is finalizing. REQUIRES: the
  // batch exists.
  Batch Cancel(const std::string& id);

  // For replicas: call it when another one has changed batches, and every few seconds. Continues
  // the batches of replicas that have ended.
  void OnStoreChanged();

  // Cancels the lines in flight and joins the threads; results stay, and the next start resumes.
  void Stop();

 private:
  enum class Pool { kCheck, kRun };

  void Post(const Batch& batch, Pool pool);
  void Post(const std::string& id, uint64_t client, Pool pool);
  // Continues a batch from its state, unless another thread does that.
  void Work(const std::string& id, uint64_t client, Pool pool);
  // Returns a batch that the run pool must continue.
  std::optional<Batch> WorkOn(const Batch& found, Pool pool,
                              const std::shared_ptr<BatchMailbox>& mailbox);
  // Work has ended before the batch was read: it is another replica's, or the read has failed.
  void OnNotBegun(const std::string& id, uint64_t client, Pool pool,
                  const std::optional<Error>& error);
  // Work has ended without the batch, since another replica has or had it.
  void OnLost(const Batch& batch);
  // Ends a batch that cannot go on.
  void Fail(const Batch& batch, const Error& error);
  void RemoveLeftovers();

  const Options options_;
  BatchStore& store_;
  BatchSlots slots_;
  std::mutex large_lines_;  // BatchEnvironment
  std::atomic<bool> is_stopping_{false};
  const BatchEnvironment environment_;
  std::mutex mutex_;                                              // guards claimed_
  std::map<std::string, std::shared_ptr<BatchMailbox>> claimed_;  // by a thread, by id
  RequestPool check_pool_;  // short work: checks of inputs, ends of batches that do not run
  RequestPool run_pool_;    // one thread per running batch
};

}  // namespace tandem::server
