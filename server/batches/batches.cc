#include "server/batches/batches.h"

#include <utility>
#include <vector>

#include "engine/base/attempt.h"
#include "engine/base/durable_dirs.h"
#include "engine/base/error.h"
#include "engine/base/log.h"
#include "engine/base/unix_time.h"
#include "server/batches/batch_id.h"

namespace tandem::server {
namespace {

constexpr int64_t kWindowS = 24 * 3600;
constexpr int kRunThreads = 8;
constexpr size_t kMaxTasks = 1 << 20;  // BatchStore bounds the batches
constexpr std::string_view kResultsSuffix = ".results";

std::filesystem::path MakeDir(const std::filesystem::path& data_dir) {
  std::filesystem::path dir = data_dir / "batches";
  MakeDirectories(dir);
  std::error_code error;
  std::filesystem::permissions(dir, std::filesystem::perms::owner_all, error);
  if (error) {
    throw Error(ErrorCode::kIo, "could not restrict " + dir.string() + ": " + error.message());
  }
  return dir;
}

}  // namespace

Batches::Batches(Options options, BatchStore& store, FileStore& files, const Router& router,
                 DetachedRequests& detached)
    : options_(std::move(options)),
      store_(store),
      slots_(options_.max_in_flight),
      environment_{.store = store,
                   .files = files,
                   .slots = slots_,
                   .router = router,
                   .detached = detached,
                   .failure = options_.failure,
                   .authorize = options_.authorize,
                   .on_line = options_.on_line,
                   .large_lines = large_lines_,
                   .dir = MakeDir(options_.data_dir),
                   .max_line_bytes = options_.max_line_bytes,
                   .now = options_.now ? options_.now : UnixNow,
                   .is_stopping = is_stopping_},
      check_pool_({.n_threads = 1, .max_queued = kMaxTasks, .name = "batch-check"}),
      run_pool_({.n_threads = kRunThreads, .max_queued = kMaxTasks, .name = "batch"}) {
  RemoveLeftovers();
  for (const Batch& batch : store_.Adopt()) Post(batch, Pool::kCheck);
}

Batches::~Batches() { Stop(); }

// Removes the results of batches that had ended when their server was killed, and unfinished copies
// of results. Another replica needs none of them: a terminal status never changes. The list comes
// before the looks at the rows, since other replicas begin batches meanwhile.
void Batches::RemoveLeftovers() {
  std::vector<std::filesystem::path> results;
  for (const auto& entry : std::filesystem::directory_iterator(environment_.dir)) {
    const std::string name = entry.path().filename();
    const size_t id_end = name.find('.');
    if (!name.starts_with("batch_") || id_end == std::string::npos) continue;
    if (name.compare(id_end, kResultsSuffix.size(), kResultsSuffix) != 0) continue;
    results.push_back(entry.path());
  }
  for (const std::filesystem::path& path : results) {
    const std::string name = path.filename();
    if (store_.IsUnfinished(name.substr(0, name.find('.')))) continue;
    std::error_code ignored;
    std::filesystem::remove(path, ignored);
  }
}

void Batches::OnStoreChanged() {
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [id, mailbox] : claimed_) mailbox->Post({});
  }
  for (const Batch& batch : store_.Adopt()) {
    LogEvent(spdlog::level::info, "batch_adopted", {{"batch", batch.id}});
    Post(batch, Pool::kCheck);
  }
}

void Batches::Stop() {
  is_stopping_ = true;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [id, mailbox] : claimed_) mailbox->Post({});
  }
  check_pool_.Stop();
  run_pool_.Stop();
}

void Batches::Post(const Batch& batch, Pool pool) {
  Post(batch.id, static_cast<uint64_t>(batch.owner.value_or(0)), pool);
}

void Batches::Post(const std::string& id, uint64_t client, Pool pool) {
  (pool == Pool::kCheck ? check_pool_ : run_pool_).TryPost(client, [this, id, client, pool] {
    Work(id, client, pool);
  });
}

Batch Batches::Create(const NewBatch& about, std::optional<int64_t> owner) {
  if (environment_.router.Find("POST", about.endpoint).route == nullptr) {
    throw Error(ErrorCode::kInvalidArgument, "this server has no " + about.endpoint)
        .WithParam("endpoint")
        .WithReason("unsupported_value");
  }
  Batch batch;
  batch.id = NewBatchId("batch_");
  batch.owner = owner;
  batch.endpoint = about.endpoint;
  batch.input_file_id = about.input_file_id;
  batch.metadata = about.metadata;
  batch.output_expires_after_s = about.output_expires_after_s;
  batch.times.created = environment_.now();
  batch.times.expires = batch.times.created + kWindowS;
  // From the insertion on, the store keeps the file from being deleted.
  environment_.files.Use({about.input_file_id}, [&] { store_.Insert(batch); });
  LogEvent(spdlog::level::info, "batch_created",
           {{"batch", batch.id}, {"input", batch.input_file_id}, {"endpoint", batch.endpoint}});
  Post(batch, Pool::kCheck);
  return batch;
}

Batch Batches::Cancel(const std::string& id) {
  Batch batch = store_.Update(id, [&](Batch& now) {
    if (now.outcome) return;
    now.outcome = BatchStatus::kCancelled;
    now.status = BatchStatus::kCancelling;
    now.times.cancelling = environment_.now();
  });
  if (batch.outcome != BatchStatus::kCancelled || IsTerminal(batch.status)) {
    throw Error(ErrorCode::kFailedPrecondition,
                "only a batch that is validating or in progress can be cancelled")
        .WithParam("id")
        .WithReason("batch_not_active");
  }
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = claimed_.find(id); found != claimed_.end()) {
      found->second->Post({});
    }
  }
  Post(batch, Pool::kCheck);
  return batch;
}

void Batches::Work(const std::string& id, uint64_t client, Pool pool) {
  const auto mailbox = std::make_shared<BatchMailbox>();
  {
    const std::lock_guard lock(mutex_);
    if (is_stopping_ || !claimed_.emplace(id, mailbox).second) return;
  }
  std::optional<Batch> batch;
  std::optional<Batch> to_run;
  const auto error = Attempt([&] {
    UntilDiskWorks(environment_, id,
                   [&] { batch = store_.IsOurs(id) ? store_.Find(id) : std::nullopt; });
    if (batch) to_run = WorkOn(*batch, pool, mailbox);
  });
  {
    const std::lock_guard lock(mutex_);
    claimed_.erase(id);
  }
  // Only now: the run pool's thread must find the batch unclaimed.
  if (to_run) Post(*to_run, Pool::kRun);
  // A stopping server cancels the work; the next one resumes it.
  if (is_stopping_) return;
  if (error && error->reason() == kBatchLostReason) return OnLost(*batch);
  if (error) {
    LogEvent(spdlog::level::err, "batch_interrupted",
             {{"batch", id}, {"reason", std::string(error->what())}});
  }
  if (!batch) return OnNotBegun(id, client, pool, error);
  if (!error) return;
  const auto not_failed = Attempt([&] { Fail(*batch, *error); });
  if (!not_failed) return;
  if (not_failed->reason() == kBatchLostReason) return OnLost(*batch);
  spdlog::error("batch_not_failed batch={} reason=\"{}\"", id, not_failed->what());
}

void Batches::OnNotBegun(const std::string& id, uint64_t client, Pool pool,
                         const std::optional<Error>& error) {
  if (error) {
    if (error->code() == ErrorCode::kDataLoss) return;  // its row cannot be read
    if (!Attempt([&] { PauseBatch(environment_); })) Post(id, client, pool);
  } else if (pool == Pool::kRun) {
    // It is another replica's, but may be ours again: the check of that adoption found it claimed
    // by the work that ends now. Checks run one after the other.
    Post(id, client, Pool::kCheck);
  }
}

void Batches::OnLost(const Batch& batch) {
  LogEvent(spdlog::level::warn, "batch_lost",
           {{"batch", batch.id}, {"reason", std::string("another replica has taken it over")}});
  // It may be ours again, and the post of its adoption found it claimed by the work that ends now.
  Post(batch, Pool::kCheck);
}

// The rest of the batch waits for the next start, if the database does not work either.
void Batches::Fail(const Batch& batch, const Error& error) {
  const bool is_input = error.code() == ErrorCode::kNotFound;
  UntilDiskWorks(environment_, batch.id, [&] {
    store_.UpdateOurs(batch, [&](Batch& now) {
      now.status = BatchStatus::kFailed;
      now.times.failed = environment_.now();
      now.errors = {{.code = is_input ? "invalid_input_file" : "internal_error",
                     .message = is_input ? "the input file is no longer on the server's disk"
                                         : "the server could not go on; its log says why"}};
    });
  });
}

std::optional<Batch> Batches::WorkOn(const Batch& found, Pool pool,
                                     const std::shared_ptr<BatchMailbox>& mailbox) {
  if (IsTerminal(found.status)) return std::nullopt;
  const bool is_checked = found.status != BatchStatus::kValidating || found.outcome;
  const Batch batch = is_checked ? found : ValidateBatch(environment_, found);
  if (IsTerminal(batch.status)) return std::nullopt;
  if (pool == Pool::kCheck && !batch.outcome) return batch;
  std::unique_ptr<BatchRun> run;
  UntilDiskWorks(environment_, batch.id,
                 [&] { run = std::make_unique<BatchRun>(environment_, batch, mailbox); });
  run->Run();
  return std::nullopt;
}

}  // namespace tandem::server
